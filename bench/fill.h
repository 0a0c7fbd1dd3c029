// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/tensor/tensor.h"

namespace qkv::bench {

/// A number in [0, 1) that depends on the seed and the index alone.
double uniform(uint64_t seed, int64_t index);

/// Fills with numbers of mean 0 and the given deviation, about normal.
void fill_bell(Tensor& tensor, uint64_t seed, double deviation);

}  // namespace qkv::bench
