// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/nn/parameters.h"

namespace qkv {

/// y = activation(x weight^T + bias) * gate + residual, for x [N, in] and y [N, out] (matmul.h says what gate and
/// residual may be). The order of its sums knows only `in`, so a row has the same bits alone and in any batch.
struct LinearOptions {
  Activation activation = Activation::none;
  TensorView gate = {};
  TensorView residual = {};
  int threads = 0;
};
void linear_forward(const TensorView& x, const Linear& linear, const MutableTensorView& y,
                    const LinearOptions& options = {});

struct LinearBackwardOptions {
  TensorView residual = {};  ///< added to d_x; d_x itself for d_x += ...
  int threads = 0;
};

/// Of y = x weight^T + bias (without activation and gate; the residual's gradient is d_y):
///   d_x = d_y weight + residual (where d_x is there)    d_weight += d_y^T x    d_bias += column sums of d_y
void linear_backward(const TensorView& x, const Linear& linear, const TensorView& d_y, const MutableTensorView& d_x,
                     const LinearGradients& gradients, const LinearBackwardOptions& options = {});

/// The weights of a layer packed for products, so that `weight` need not be read again (PackedMatrix).
void pack(Linear& linear, int threads = 0);
void pack(FeedForward& feed_forward, int threads = 0);
void pack(MultiHeadAttention& attention, int threads = 0);
void pack(Block& block, int threads = 0);
void pack(Stack& stack, int threads = 0);

}  // namespace qkv
