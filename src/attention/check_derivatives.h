// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"
#include "qkv/attention/derivatives.h"

namespace qkv {

/// Tangents as operands with the axes of their tensors; absent ones are zero.
struct TangentOperands {
  Operand q, k, v, bias;
  Operand slopes, table, sinks;  ///< (-, h, -, -), of the table (-, h, -, bucket)
  Operand scale;                 ///< one number

  /// The tangent of the scale, 0 without one.
  double scale_value() const { return scale ? load_as_double(scale.dtype, scale.data) : 0.0; }
};

TangentOperands check_tangents(const Problem& problem, const AttentionOptions& options,
                               const AttentionTangents& tangents, int q_rank);

/// Cotangents are tangents along which the Hessian is taken: c_q is used as a tangent of q, and so on.
TangentOperands check_cotangents(const Problem& problem, const AttentionOptions& options,
                                 const AttentionCotangents& cotangents, int q_rank);

}  // namespace qkv
