// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/attention/options.h"
#include "qkv/tensor/tensor.h"

namespace qkv {

/// What derivatives need of a forward pass. `row_max` and `row_sum` are the pair (m, l) of every row, in the compute
/// type (f64 for f64, else f32): [B, H, Tq], or [total_q, H] for packed sequences. `out` is the unrounded output in f32
/// where the output is narrower (an owning tensor); for f32 and f64 it is a view of the caller's `out`, which must stay
/// alive and unchanged until the last derivative has been taken.
struct AttentionState {
  Tensor row_max;
  Tensor row_sum;
  Tensor wide_out;  ///< owns the f32 output for bf16 and f16; absent otherwise
  TensorView out;
};

/// out = softmax(scale q k^T + ...) v, as docs/semantics.md defines it.
///
/// q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], out [B, H, Tq, Dv], one dtype for all (f64, f32, bf16, f16);
/// ranks 2 ([T, D]) and 3 ([H, T, D]) are accepted, the same for all four. lse [B, H, Tq] of rank(q) - 1, f32 (f64 for
/// f64). Packed: q [total_q, H, D], k [total_k, Hkv, D], v, out likewise, lse [total_q, H]. Any strides.
/// Outputs must not overlap inputs, each other or themselves. A wrong call throws Error before anything is written.
/// Extra memory is O((Tq + Tk)(D + Dv)) per head at most; where it is not to be had, MemoryError or std::bad_alloc.
void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       const MutableTensorView& out, const MutableTensorView& lse);

/// The same, keeping what derivatives need.
AttentionState attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const AttentionOptions& options, const MutableTensorView& out);

/// lse = m + log l of a state, for callers that want both: [B, H, Tq] of the rank that attention_forward takes, or
/// [total_q, H], of the state's dtype. Throws Error otherwise.
void attention_lse(const AttentionState& state, const MutableTensorView& lse);

/// Upstream gradients: d_out [B, H, Tq, Dv] of the dtype of q; d_lse [B, H, Tq] f32 (f64), optional.
struct AttentionUpstream {
  TensorView d_out;
  TensorView d_lse = {};
  // Implicit: a plain d_out is the common case.  NOLINTBEGIN(google-explicit-constructor)
  AttentionUpstream(const TensorView& out_gradient) : d_out(out_gradient) {}
  AttentionUpstream(const MutableTensorView& out_gradient) : d_out(out_gradient) {}
  // NOLINTEND(google-explicit-constructor)
  AttentionUpstream(const TensorView& out_gradient, const TensorView& lse_gradient)
      : d_out(out_gradient), d_lse(lse_gradient) {}
};

/// Where gradients go; an absent view is not wanted. Each has the shape and dtype of its tensor, `scale` is [1] or []
/// and f32 (f64 for f64). Overwritten, never added to.
struct AttentionGradients {
  MutableTensorView q = {};
  MutableTensorView k = {};
  MutableTensorView v = {};
  MutableTensorView bias = {};
  MutableTensorView slopes = {};
  MutableTensorView table = {};
  MutableTensorView sinks = {};
  MutableTensorView scale = {};
};

/// The vector-Jacobian product of attention_forward, by recomputing tiles. `state` comes from a forward with the same
/// inputs and options. Sums run in the compute type in an order that depends on the problem alone. Shapes, errors and
/// memory as for attention_forward; gradients must not overlap inputs, the state, each other or themselves.
void attention_backward(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                        const AttentionState& state, const AttentionUpstream& upstream,
                        const AttentionGradients& gradients);

}  // namespace qkv
