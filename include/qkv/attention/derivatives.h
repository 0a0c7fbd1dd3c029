// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/attention/attention.h"

namespace qkv {

// Forward-mode and second derivatives of attention, tile by tile by recomputation: there never is a Tq x Tk array.
//
// `state` comes from attention_forward with the same inputs and options. Every mask and option applies, dropout drops
// what the forward dropped. Empty rows and hidden pairs give exact zeros, whatever is stored there. Results do not
// depend on the number of threads, on the batch or on other rows. Outputs are overwritten, never added to, and must not
// overlap inputs, the state, each other or themselves. A wrong call throws Error before anything is written. Extra
// memory is O((Tq + Tk)(D + Dv)) per head at most. docs/derivatives.md derives the formulas.

/// Tangents of the inputs, each of the shape and dtype of its tensor, which must be there; `scale` is [1] or [] and f32
/// (f64 for f64). An absent view is a tangent of zero and costs nothing.
struct AttentionTangents {
  TensorView q = {};
  TensorView k = {};
  TensorView v = {};
  TensorView bias = {};  ///< not read where the bias is -inf
  TensorView slopes = {};
  TensorView table = {};
  TensorView sinks = {};
  TensorView scale = {};
};

/// The Jacobian-vector product: t_out [B, H, Tq, Dv] of the dtype of q, t_lse [B, H, Tq] f32 (f64 for f64), in the
/// ranks attention_forward takes; either may be absent.
///   w_ij = tangent of the score      W_i = sum_j a_ij w_ij + a_sink t_sink      t_lse_i = W_i
///   t_out_i = sum_j r_ij a_ij ((w_ij - W_i) v_j + t_v_j)
/// The tangent of lse in an empty row is 0, or with a sink that of the sink.
void attention_jvp(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                   const AttentionState& state, const AttentionTangents& tangents, const MutableTensorView& t_out,
                   const MutableTensorView& t_lse);

/// Cotangents of what attention_backward gives, each of the shape and dtype of its tensor; an absent view is zero.
struct AttentionCotangents {
  TensorView q = {};       ///< of d_q
  TensorView k = {};       ///< of d_k
  TensorView v = {};       ///< of d_v
  TensorView bias = {};    ///< of d_bias; not read where the bias is -inf
  TensorView slopes = {};  ///< of d_slopes
  TensorView table = {};   ///< of d_table
  TensorView sinks = {};   ///< of d_sinks
};

/// Where the gradients of the backward go; an absent view is not wanted. Each has the shape and dtype of its tensor,
/// that of d_lse [B, H, Tq] and f32 (f64 for f64).
struct AttentionSecondGradients {
  MutableTensorView q = {};
  MutableTensorView k = {};
  MutableTensorView v = {};
  MutableTensorView bias = {};
  MutableTensorView d_out = {};
  MutableTensorView slopes = {};
  MutableTensorView table = {};
  MutableTensorView sinks = {};
  MutableTensorView d_lse = {};
};

/// The vector-Jacobian product of attention_backward: the gradients of
///   <c_q, d_q> + <c_k, d_k> + <c_v, d_v> + <c_bias, d_bias> + <c_slopes, d_slopes> + <c_table, d_table> +
///   <c_sinks, d_sinks>
/// with respect to q, k, v, bias, slopes, table, sinks and the upstream gradients, with scale held constant. The
/// gradients of d_out and d_lse are the tangents of out and lse along the cotangents.
void attention_second_order(const TensorView& q, const TensorView& k, const TensorView& v,
                            const AttentionOptions& options, const AttentionState& state,
                            const AttentionUpstream& upstream, const AttentionCotangents& cotangents,
                            const AttentionSecondGradients& gradients);

}  // namespace qkv
