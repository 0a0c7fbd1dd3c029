// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/support/error.h"

namespace qkv {

/// a * b; throws Error naming `what` when the product does not fit 64 bits.
inline int64_t checked_multiply(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  require(!__builtin_mul_overflow(a, b, &product), what, ": ", a, " x ", b, " does not fit 64 bits");
  return product;
}

/// a + b; throws Error naming `what` when the sum does not fit 64 bits.
inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t sum = 0;
  require(!__builtin_add_overflow(a, b, &sum), what, ": ", a, " + ", b, " does not fit 64 bits");
  return sum;
}

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

}  // namespace qkv
