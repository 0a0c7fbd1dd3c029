// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace qkv {

/// The counters behind WorkCount.
struct WorkCounter {
  std::atomic<bool> on{false};
  std::atomic<int64_t> multiplies{0}, score_multiplies{0}, score_entries{0};

  void add(std::atomic<int64_t>& counter, int64_t amount) const {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }
};
extern WorkCounter work_counter;

}  // namespace qkv
