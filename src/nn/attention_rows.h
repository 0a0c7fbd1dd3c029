// SPDX-License-Identifier: Apache-2.0
//
// Between rows [N, width] and the tensors of the operation: sizes of a multi-head layer, its projections, and the views
// and options that attention takes.
#pragma once

#include "nn/rows.h"
#include "qkv/nn/multi_head_attention.h"

namespace qkv {

/// H, Hkv, D, Dv of a layer, from its options and weights. Throws Error where they do not fit each other.
struct HeadShape {
  int64_t H, Hkv, D, Dv;
};
HeadShape head_shape(const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options);

/// Queries, keys or values of some rows, and what their norm kept.
struct Projection {
  Tensor rows;      ///< [N, heads, width]
  Tensor unnormed;  ///< the same before head_norm, where it is kept
  NormalizeState norm;
};

/// What happens between the product and attention; absent parts do nothing.
struct ProjectionSteps {
  int64_t heads;
  int64_t width;
  const NormParameters* norm = nullptr;  ///< with options.head_norm
  const RotaryTable* rotary = nullptr;
};

/// x [N, in] -> [N, heads, width] in `dtype`, normed and rotated.
Projection project(const TensorView& x, const Linear& linear, const ProjectionSteps& steps,
                   const MultiHeadAttentionOptions& options, DType dtype, bool keep);

ProjectionSteps query_steps(const HeadShape& shape, const MultiHeadAttention& parameters,
                            const MultiHeadAttentionOptions& options);
ProjectionSteps key_steps(const HeadShape& shape, const MultiHeadAttention& parameters,
                          const MultiHeadAttentionOptions& options);

/// [N, heads, width] as attention takes it: packed as it is, else [batch, heads, N / batch, width].
TensorView as_sequences(const TensorView& rows, bool packed, int64_t batch);
MutableTensorView as_sequences(const MutableTensorView& rows, bool packed, int64_t batch);

/// The options of the operation: the layer's, with its trainable terms and threads. `self`: keys start where queries
/// do.
AttentionOptions operation_options(const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options,
                                   bool self);

}  // namespace qkv
