// SPDX-License-Identifier: Apache-2.0
#include "fill.h"

#include <cmath>

#include "qkv/support/random.h"

namespace qkv::bench {
namespace {

/// About normal with variance 1: the sum of four uniform 16-bit numbers, which is enough for timing and for a check.
double bell(uint64_t seed, int64_t index) {
  const uint64_t bits = mix64(mix64(seed) ^ static_cast<uint64_t>(index));
  const uint64_t sum = (bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48);
  return (static_cast<double>(sum) / 65536.0 - 2.0) * std::sqrt(3.0);
}

}  // namespace

double uniform(uint64_t seed, int64_t index) {
  return static_cast<double>(mix64(mix64(seed) ^ static_cast<uint64_t>(index)) >> 11) * 0x1p-53;
}

void fill_bell(Tensor& tensor, uint64_t seed, double deviation) {
  const MutableTensorView view = tensor.mutable_view();
  for (int64_t i = 0; i < view.elements(); ++i) store_as(view.dtype(), view.at(i), deviation * bell(seed, i));
}

}  // namespace qkv::bench
