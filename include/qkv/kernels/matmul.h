// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "qkv/tensor/view.h"

namespace qkv {

// Matrix products for linear layers:
//
//   C[M, N] = activation(A[M, K] B[K, N] + bias[N]) * gate[M, N] + residual[M, N]
//
// Same bits: an element of C depends on its row of A, its column of B, its bias, gate and residual, on K and the
// dtypes, and on the instruction set. It does not depend on M, N, strides, threads, or on whether B is packed: the sum
// over K runs in blocks of 512, each in order from zero, and the sums of blocks are added in order.
//
// Compute type: f64 when A is f64 (then everything else is too), f32 otherwise; narrower values are exact in f32. The
// sum, bias, activation, gate and residual are not rounded before the final store to C's dtype.

enum class Activation : uint8_t {
  none,
  relu,       ///< max(x, 0); NaN stays NaN
  gelu,       ///< x Phi(x), Phi the normal distribution: the exact form
  gelu_tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  silu,       ///< x / (1 + exp(-x))
};

/// A matrix B[K, N] copied once into the order in which products read it. Copies share the memory. It belongs to the
/// instruction set in use when it was made.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  /// `matrix`: [K, N] of a floating dtype and any strides (transposed() for weights stored as [N, K]), read only here.
  /// f16 is kept as f32, other dtypes as they are. `threads` 0: all. Throws Error for another rank or dtype.
  explicit PackedMatrix(const TensorView& matrix, int threads = 0);

  explicit operator bool() const { return static_cast<bool>(storage_); }
  int64_t rows() const;     ///< K
  int64_t columns() const;  ///< N
  DType dtype() const;      ///< of the matrix it was made from
  int64_t bytes() const;    ///< memory it holds

  struct Storage;
  const Storage* storage() const { return storage_.get(); }

 private:
  std::shared_ptr<const Storage> storage_;
};

/// What happens to A B before it is stored. Absent views do nothing. Views may have any strides, zero for broadcasting,
/// and any floating dtype (f64 only and always with f64).
struct MatmulOptions {
  TensorView bias = {};  ///< [N]
  Activation activation = Activation::none;
  TensorView gate = {};      ///< [M, N], multiplied after the activation
  TensorView residual = {};  ///< [M, N], added last; C itself for C += A B
  int threads = 0;           ///< 0: all CPUs this process may use
};

/// A: [M, K], B: [K, N], C: [M, N]; any strides (transposed, reversed; zero for A and B), any size may be 0: K = 0 is a
/// sum of 0. A and B are f32, bf16 or f16, each its own, and C is one of these; or all are f64.
///
/// Throws Error for dtypes and shapes that do not fit, and when C overlaps itself or an input; the one exception is a
/// residual that is C itself, element by element. Nothing has been written then. Throws MemoryError without memory.
/// NaN and infinities propagate as the formula says: 0 * NaN is NaN.
void matmul(const TensorView& a, const TensorView& b, const MutableTensorView& c, const MatmulOptions& options = {});
void matmul(const TensorView& a, const PackedMatrix& b, const MutableTensorView& c, const MatmulOptions& options = {});

/// Gradients of C = A B + bias from d_c: d_a = matmul(d_c, transposed(b)), d_b = matmul(transposed(a), d_c), and
/// d_bias = column_sums(d_c). With `residual = d_b` the last two add to a gradient.

/// The view of a matrix with rows and columns exchanged.
TensorView transposed(const TensorView& matrix);
MutableTensorView transposed(const MutableTensorView& matrix);

/// sums[N] = sum over rows of x[M, N] (+ residual[N], which may be `sums` itself), in the order and arithmetic of a
/// product with a row of ones. Errors as for matmul.
void column_sums(const TensorView& x, const MutableTensorView& sums, const TensorView& residual = {}, int threads = 0);

}  // namespace qkv
