// SPDX-License-Identifier: Apache-2.0
//
// What layers share: checks of rows, temporary rows, views with other axes over the same memory.
#pragma once

#include "qkv/nn/parameters.h"
#include "qkv/support/error.h"
#include "qkv/tensor/tensor.h"

namespace qkv {

/// A floating [N, width].
inline void check_rows(const TensorView& view, const char* layer, const char* name) {
  require(static_cast<bool>(view), layer, ": ", name, " is needed, none came");
  require(view.rank() == 2, layer, ": ", name, " should be [rows, width], got ", view.shape());
  require(is_floating(view.dtype()), layer, ": ", name, " should be f64, f32, bf16 or f16, got ",
          qkv::name(view.dtype()));
}

inline void check_same_rows(const TensorView& view, const TensorView& other, const char* layer, const char* name,
                            const char* other_name) {
  check_rows(view, layer, name);
  require(view.shape() == other.shape(), layer, ": ", name, " should be ", other.shape(), " as ", other_name, ", got ",
          view.shape());
}

/// f64 for f64, else f32.
inline DType compute_type_of(const TensorView& view) { return view.dtype() == DType::f64 ? DType::f64 : DType::f32; }

template <class View>
bool is_present(const LinearOf<View>& linear) {
  if constexpr (std::is_same_v<View, TensorView>) {
    if (linear.packed) return true;
  }
  return static_cast<bool>(linear.weight);
}

/// Rows that a linear layer gives.
inline int64_t outputs_of(const Linear& linear, const char* layer, const char* name) {
  if (linear.packed) return linear.packed.columns();
  require(linear.weight && linear.weight.rank() == 2, layer, ": ", name, " needs a weight [out, in], got ",
          linear.weight.shape());
  return linear.weight.size(0);
}

/// A row-major tensor's memory with other axes.
inline MutableTensorView reshaped(Tensor& tensor, const Dims& shape) {
  return {tensor.dtype(), tensor.mutable_view().data(), shape};
}
inline TensorView reshaped(const Tensor& tensor, const Dims& shape) {
  return {tensor.dtype(), tensor.view().data(), shape};
}

}  // namespace qkv
