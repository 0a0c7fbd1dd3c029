// SPDX-License-Identifier: Apache-2.0
//
// Forward mode and second order by the definition, one row at a time, on what forward_row leaves behind.
#pragma once

#include <vector>

#include "attention/check_derivatives.h"
#include "attention/check_view.h"
#include "attention/reference_head.h"
#include "qkv/attention/reference.h"

namespace qkv::definition {

/// What one row's tangents leave behind. Arrays are indexed by key and valid at visible keys.
template <class T>
struct RowTangent {
  std::vector<T> t_q;       // [D]
  std::vector<T> t_scaled;  // of scale * q . k
  std::vector<T> t_score;   // w, of the final score
  std::vector<T> t_out;     // [Dv]
  T t_lse = 0;              // W

  explicit RowTangent(const Problem& problem);
};

/// Keys, values and, row by row, everything else along which a derivative is taken; absent tensors are zero.
template <class T>
class Tangents {
 public:
  Tangents(const Problem& problem, const TangentOperands& operands, int64_t b, int64_t hkv);

  /// From query i of head (b, h) to the tangent of its output.
  void run(const HeadInputs<T>& inputs, int64_t h, int64_t i, const Row<T>& row, RowTangent<T>& tangent) const;
  const HeadInputs<T>& inputs() const { return inputs_; }

 private:
  T score_tangent(const HeadInputs<T>& inputs, int64_t h, int64_t i, int64_t j, const Row<T>& row,
                  const RowTangent<T>& tangent) const;

  const Problem& problem_;
  TangentOperands operands_;
  int64_t b_;
  HeadInputs<T> inputs_;  // t_k and t_v
};

/// r_ij (dO_i . v_j) by key, for dP and its like.
template <class T>
void value_products(const Problem& problem, const HeadInputs<T>& inputs, const std::vector<T>& d_out, int64_t b,
                    int64_t i, const Row<T>& row, std::vector<T>& products);

/// Results with the axes of the operation: f64 for the reference, as the operation stores them for the plain formula.
class ReferenceResults {
 public:
  ReferenceResults(const Problem& problem, Arithmetic arithmetic) : problem_(problem), arithmetic_(arithmetic) {}
  /// A tensor with the axes of q, k or v.
  Operand tensor(Tensor& result, const Dims& shape) const;
  /// One number per row.
  Operand per_row(Tensor& result, const TensorView& q) const;
  /// The type of a result whose tensor has the type `stored`.
  DType dtype(DType stored) const { return arithmetic_ == Arithmetic::reference ? DType::f64 : stored; }

 private:
  const Problem& problem_;
  Arithmetic arithmetic_;
};

template <class T>
void store_reference(const Operand& target, int64_t b, int64_t h, int64_t row, const T* values, int64_t count) {
  for (int64_t c = 0; c < count; ++c) store_as<T>(target.dtype, target.mutable_at(b, h, row, c), values[c]);
}

}  // namespace qkv::definition
