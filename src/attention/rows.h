// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/problem.h"
#include "kernels/attention_kernels.h"
#include "tensor/round.h"

namespace qkv {

/// `rows` stored rows of an operand from row `first` (counted from the tensor's row 0) of one batch entry and head.
inline StoredRows stored_rows(const Operand& operand, int64_t b, int64_t h, int64_t first, int64_t rows,
                              int64_t columns) {
  return {operand.at(b, h, first, 0), operand.dtype, operand.stride[2], operand.stride[3], rows, columns};
}

/// One element per row: m, l, lse.
template <class T>
void store_one(const Operand& operand, int64_t b, int64_t h, int64_t row, T value) {
  store_as<T>(operand.dtype, operand.mutable_at(b, h, row, 0), value);
}

/// m + log l, the same bits wherever lse is asked for.
template <class T>
T row_lse(T m, T l) {
  return static_cast<T>(static_cast<double>(m) + std::log(static_cast<double>(l)));
}

/// Stores a row of compute values times `factor`, rounded once to the operand's dtype. Adding 0 makes -0 a 0: the sum
/// of nothing times a negative factor has the bits of a row that was never summed.
template <class T>
void store_row(const Operand& operand, int64_t b, int64_t h, int64_t row, const T* values, int64_t columns, T factor) {
  char* to = static_cast<char*>(operand.mutable_at(b, h, row, 0));
  const int64_t step = operand.stride[3];
  if (operand.dtype == DTypeOf<T>::value) {
    T* out = reinterpret_cast<T*>(to);
    if (step == 1) {
      for (int64_t c = 0; c < columns; ++c) out[c] = values[c] * factor + T{0};
    } else {
      for (int64_t c = 0; c < columns; ++c) out[c * step] = values[c] * factor + T{0};
    }
  } else if (operand.dtype == DType::bf16) {
    BFloat16* out = reinterpret_cast<BFloat16*>(to);
    int64_t c = 0;
    // As many at a time as compilers turn into vectors.
    for (; step == 1 && c + 16 <= columns; c += 16) {
      for (int64_t n = c; n < c + 16; ++n) out[n] = round_to_bfloat16(static_cast<float>(values[n] * factor + T{0}));
    }
    for (; c < columns; ++c) out[c * step] = round_to_bfloat16(static_cast<float>(values[c] * factor + T{0}));
  } else {
    for (int64_t c = 0; c < columns; ++c) {
      store_as<T>(operand.dtype, to + c * step * operand.element_size, values[c] * factor + T{0});
    }
  }
}

}  // namespace qkv
