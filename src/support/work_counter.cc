// SPDX-License-Identifier: Apache-2.0
#include "support/work_counter.h"

#include <initializer_list>

#include "qkv/support/work_count.h"

namespace qkv {

WorkCounter work_counter;

void count_work(bool on) {
  for (auto* counter : {&work_counter.multiplies, &work_counter.score_multiplies, &work_counter.score_entries}) {
    if (on) counter->store(0);
  }
  work_counter.on.store(on);
}

WorkCount work_count() {
  return {work_counter.multiplies.load(), work_counter.score_multiplies.load(), work_counter.score_entries.load()};
}

}  // namespace qkv
