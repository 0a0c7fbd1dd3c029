// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv {

/// The values of positions [N] (i64 or i32), each of magnitude at most 2^31. Throws Error in the name of `operation`.
std::vector<int64_t> integer_positions(const TensorView& positions, const char* operation);

}  // namespace qkv
