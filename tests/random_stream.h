// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "qkv/support/random.h"

namespace qkv::test {

/// A stream of random numbers, a pure function of its seed.
class Stream {
 public:
  explicit Stream(uint64_t seed) : key_(mix64(seed ^ 0x71756b76)) {}
  uint64_t bits() { return mix64(key_ ^ mix64(counter_++)); }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }
  /// In [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double p) { return uniform() < p; }
  template <class T, size_t N>
  T pick(const T (&from)[N]) {
    return from[bits() % N];
  }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace qkv::test
