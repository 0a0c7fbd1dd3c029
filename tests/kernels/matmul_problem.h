// SPDX-License-Identifier: Apache-2.0
//
// Matrix products to test: operands in any dtype and layout, and the formula in plain loops.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "qkv/kernels/matmul.h"
#include "qkv/support/error.h"
#include "qkv/tensor/tensor.h"
#include "random_stream.h"
#include "strided.h"

namespace qkv::test {

/// Half of the distance from 1 to the next number.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-24;
  }
}

inline DType compute_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

inline StridedTensor random_matrix(DType dtype, const Dims& shape, Layout layout, uint64_t seed) {
  StridedTensor tensor(dtype, shape, layout);
  Stream stream(seed);
  tensor.fill([&](int64_t) { return stream.normal(); });
  return tensor;
}

/// Sums of products and of their magnitudes, row-major [M, N].
struct ExactProduct {
  std::vector<long double> sums, magnitudes;
};

inline ExactProduct exact_product(const TensorView& a, const TensorView& b) {
  const int64_t M = a.size(0), K = a.size(1), N = b.size(1);
  const std::vector<double> x = elements(a), y = elements(b);
  ExactProduct result;
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t j = 0; j < N; ++j) {
      long double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < K; ++k) {
        const long double term = static_cast<long double>(x[static_cast<size_t>(i * K + k)]) *
                                 static_cast<long double>(y[static_cast<size_t>(k * N + j)]);
        sum += term;
        magnitude += std::fabs(term);
      }
      result.sums.push_back(sum);
      result.magnitudes.push_back(magnitude);
    }
  }
  return result;
}

/// Roundings that one term of a sum meets at most: one a step of its block of 512 and its product, one a block, and the
/// bias.
inline double roundings(int64_t K) { return static_cast<double>(std::min<int64_t>(K, 512) + (K + 511) / 512 + 2); }

/// Holds every element of c to the bound of sums in the compute type and one rounding to c's dtype.
inline void expect_product(const TensorView& a, const TensorView& b, const TensorView& c) {
  const ExactProduct exact = exact_product(a, b);
  const double unit = unit_roundoff(compute_type(a.dtype()));
  for (int64_t n = 0; n < c.elements(); ++n) {
    const long double sum = exact.sums[static_cast<size_t>(n)];
    const long double of_sum = roundings(a.size(1)) * unit * exact.magnitudes[static_cast<size_t>(n)];
    // Numbers of f16 lie 2^-24 apart near 0.
    const long double of_store =
        c.dtype() == compute_type(a.dtype())
            ? 0
            : unit_roundoff(c.dtype()) * (std::fabs(sum) + of_sum) + (c.dtype() == DType::f16 ? 0x1p-25L : 0);
    ASSERT_LE(std::fabs(static_cast<long double>(element(c, n)) - sum), of_sum + of_store) << "element " << n;
  }
}

/// Row-major bytes of a result.
inline std::vector<char> bits_of(const TensorView& view) {
  const Tensor copy = converted(view, view.dtype());
  const char* data = static_cast<const char*>(copy.view().data());
  return {data, data + view.elements() * size_of(view.dtype())};
}

}  // namespace qkv::test
