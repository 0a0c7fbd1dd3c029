// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "inputs.h"

namespace qkv::bench {

/// What a case must do at least. Only visible pairs of query and key count, and they are counted exactly.
struct Work {
  int64_t pairs = 0;              ///< visible (b, h, i, j)
  double forward_operations = 0;  ///< 2 pairs (D + Dv): two products
  double key_value_bytes = 0;     ///< k and v read once: what bounds a call with few queries
};
Work work_of(const Inputs& inputs);

/// Operations of a call: forward 1, backward 2.5 (five products), both 3.5 times the forward's.
double operations(const Work& work, Mode mode);

}  // namespace qkv::bench
