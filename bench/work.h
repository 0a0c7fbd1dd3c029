// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "inputs.h"
#include "subject.h"

namespace qkv::bench {

/// Operations: 2 pairs (D + Dv) forward for two products, 2.5 times that backward for five. Only visible pairs of query
/// and key count, and they are counted exactly.
Work work_of(const Inputs& inputs);

}  // namespace qkv::bench
