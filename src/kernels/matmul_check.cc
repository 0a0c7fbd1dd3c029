// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul_check.h"

#include <cstdlib>

#include "qkv/support/error.h"

namespace qkv {
namespace {

/// True when every element lies within 2^62 bytes of element 0.
bool fits(const TensorView& view) {
  constexpr int64_t kLimit = int64_t{1} << 58;
  int64_t extent = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) == 0) return true;
    int64_t reach = 0;
    if (__builtin_mul_overflow(view.size(axis) - 1, view.stride(axis), &reach)) return false;
    if (reach >= kLimit || reach <= -kLimit) return false;
    extent += std::abs(reach);
    if (extent >= kLimit) return false;
  }
  return true;
}

void check_dtype(const TensorView& view, const char* name, DType a) {
  const bool wide = a == DType::f64;
  require(wide == (view.dtype() == DType::f64), "matmul: ", name, " is ", qkv::name(view.dtype()), ", a is ",
          qkv::name(a), ": f64 goes with f64 only");
}

void check_operand(const TensorView& view, const char* name, const Dims& shape, DType a) {
  if (!view) return;
  check_matrix(view, name, shape.rank());
  require(view.shape() == shape, "matmul: ", name, " should be ", shape, ", got ", view.shape());
  check_dtype(view, name, a);
}

}  // namespace

void check_floating(const TensorView& view, const char* operation, const char* name) {
  require(static_cast<bool>(view), operation, ": ", name, " is needed, none came");
  require(is_floating(view.dtype()), operation, ": ", name, " should be f64, f32, bf16 or f16, got ",
          qkv::name(view.dtype()));
  bool is_empty = false;
  for (const int64_t size : view.shape()) {
    require(size >= 0, operation, ": ", name, " has a negative size, ", view.shape());
    is_empty = is_empty || size == 0;
  }
  require(fits(view), operation, ": ", name, " does not fit 64 bits, ", view.shape());
  require(is_empty || view.data() != nullptr, operation, ": ", name, " has no memory");
  require(is_empty || reinterpret_cast<uintptr_t>(view.data()) % static_cast<uintptr_t>(size_of(view.dtype())) == 0,
          operation, ": ", name, " is not aligned to its elements");
}

void check_matrix(const TensorView& view, const char* name, int rank) {
  require(static_cast<bool>(view), "matmul: ", name, " is needed, none came");
  require(view.rank() == rank, "matmul: ", name, " should have ", rank, " axes, got ", view.shape());
  check_floating(view, "matmul", name);
}

bool is_same_view(const TensorView& x, const TensorView& y) {
  return x.data() == y.data() && x.dtype() == y.dtype() && x.shape() == y.shape() && x.strides() == y.strides();
}

StoredRows stored_rows(const TensorView& view) {
  if (!view) return {nullptr, DType::f32, 0, 0, 0, 0};
  if (view.rank() == 1) return {view.data(), view.dtype(), 0, view.stride(0), 1, view.size(0)};
  return {view.data(), view.dtype(), view.stride(0), view.stride(1), view.size(0), view.size(1)};
}

void check_matmul(const TensorView& a, const TensorView& b, const Dims& b_shape, DType b_dtype,
                  const MutableTensorView& c, const MatmulOptions& options) {
  check_matrix(a, "a", 2);
  require((a.dtype() == DType::f64) == (b_dtype == DType::f64), "matmul: b is ", name(b_dtype), ", a is ",
          name(a.dtype()), ": f64 goes with f64 only");
  require(a.size(1) == b_shape[0], "matmul: b has ", b_shape[0], " rows, a has ", a.size(1), " columns");
  check_matrix(c, "c", 2);
  check_operand(c, "c", {a.size(0), b_shape[1]}, a.dtype());
  check_operand(options.bias, "bias", {b_shape[1]}, a.dtype());
  check_operand(options.gate, "gate", c.shape(), a.dtype());
  check_operand(options.residual, "residual", c.shape(), a.dtype());
  require(options.threads >= 0, "matmul: threads should be 0 or more, got ", options.threads);
  require(!overlaps_itself(c), "matmul: c overlaps itself");
  require(!overlap(c, a), "matmul: c overlaps a");
  require(!overlap(c, b), "matmul: c overlaps b");
  require(!overlap(c, options.bias), "matmul: c overlaps bias");
  require(!overlap(c, options.gate), "matmul: c overlaps gate");
  require(is_same_view(c, options.residual) || !overlap(c, options.residual), "matmul: c overlaps residual");
}

}  // namespace qkv
