// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/arrays.h"
#include "python/src/options.h"

namespace qkv::python {

/// What every attention function is called with.
struct Call {
  Inputs inputs;
  TensorView q, k, v;
  AttentionOptions options;

  Call(nb::handle q_array, nb::handle k_array, nb::handle v_array, const nb::kwargs& keywords)
      : q(inputs.view(q_array, "q")),
        k(inputs.view(k_array, "k")),
        v(inputs.view(v_array, "v")),
        options(parse_options(keywords, q.dtype() == DType::f64, inputs)) {}

  DType number_dtype() const { return q.dtype() == DType::f64 ? DType::f64 : DType::f32; }
  const char* number_dtype_name() const { return q.dtype() == DType::f64 ? "float64" : "float32"; }
  /// Shapes of results. What makes no sense is refused by the library, which looks at the inputs first.
  Dims out_shape() const {
    Dims shape = q.shape();
    if (shape.rank() > 0 && v.rank() > 0) shape[shape.rank() - 1] = v.size(v.rank() - 1);
    return shape;
  }
  Dims row_shape() const { return without_last(q.shape()); }
  Dims key_shape() const { return with_heads_of_q(without_last(k.shape())); }

 private:
  static Dims without_last(const Dims& shape) {
    Dims result;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) result.push_back(shape[axis]);
    return result;
  }
  /// [B, H, Tk] from k's [B, Hkv, Tk, D]; [total_k, H] when packed.
  Dims with_heads_of_q(Dims shape) const {
    const int heads = options.query_starts ? 1 : q.rank() - 3;
    if (heads >= 0 && heads < shape.rank() && heads < q.rank()) shape[heads] = q.size(heads);
    return shape;
  }
};

}  // namespace qkv::python
