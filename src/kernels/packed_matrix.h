// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/matmul_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// Panels [N / width][steps][width], the last one padded with zeros. A step is an element of K; of a bf16 matrix a
/// pair, held as the f32 whose bits it is.
struct PackedMatrix::Storage {
  const KernelSet* set;
  DType dtype;
  int64_t K, N;
  int64_t steps;
  int64_t width;
  AlignedArray<float> f32;
  AlignedArray<double> f64;

  /// The panel that begins with `column`.
  template <class T>
  const T* panel(int64_t column) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return f32.get() + column * steps;
    } else {
      return f64.get() + column * steps;
    }
  }
};

}  // namespace qkv
