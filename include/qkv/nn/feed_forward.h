// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/kernels/activate.h"
#include "qkv/nn/parameters.h"

namespace qkv {

struct FeedForwardOptions {
  Activation activation = Activation::gelu;
  DropoutOptions dropout = {};  ///< of the hidden rows
  TensorView residual = {};     ///< [N, width], added to y
  int threads = 0;
};

/// What the backward needs, for N rows: with a gate three arrays [N, hidden], without one two.
struct FeedForwardState {
  Tensor before;  ///< [N, hidden]: what the activation was applied to, in the compute type
  Tensor up;      ///< [N, hidden]: up(x) where there is a gate
  Tensor hidden;  ///< [N, hidden]: what `down` was applied to
};

/// y = down(dropout(activation(up(x)))) + residual, or with a gate down(dropout(activation(gate(x)) * up(x))) +
/// residual; x and y [N, width]. `state` null: nothing is kept, and extra memory is one array [N, hidden], with a gate
/// two. The bits of y do not depend on whether there is a state.
void feed_forward_forward(const TensorView& x, const FeedForward& parameters, const FeedForwardOptions& options,
                          const MutableTensorView& y, FeedForwardState* state = nullptr);

/// d_x [N, width] is overwritten (absent: not wanted), gradients are added to. The residual's gradient is d_y.
void feed_forward_backward(const TensorView& x, const FeedForward& parameters, const FeedForwardOptions& options,
                           const FeedForwardState& state, const TensorView& d_y, const MutableTensorView& d_x,
                           const FeedForwardGradients& gradients);

}  // namespace qkv
