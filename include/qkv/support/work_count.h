// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace qkv {

/// Work that kernels have done, of all threads: each adds what it was given to do when it is done with it.
struct WorkCount {
  int64_t multiplies = 0;        ///< multiply-accumulates of matrix products
  int64_t score_multiplies = 0;  ///< of attention, for visible pairs: D + Dv forward, 3 D + 2 Dv backward
  int64_t score_entries = 0;     ///< visible pairs of a query and a key, of all heads, forward
};

/// Turns counting on, from zero, or off. It is off at first: then it costs a test of a flag for each tile.
void count_work(bool on);
/// What has been counted since counting was turned on.
WorkCount work_count();

}  // namespace qkv
