// SPDX-License-Identifier: Apache-2.0
//
// One sublayer f with its norms, its dropout and its residual, in the forms of a block:
//
//   pre_norm    y = x + drop(f(N x))
//   post_norm   y = N(x + drop(f x))
//   sandwich    y = x + drop(P(f(N x)))
//
// What f is, the caller says. Backwards in mirror image.
#pragma once

#include <functional>

#include "nn/rows.h"
#include "qkv/nn/block.h"

namespace qkv {

/// Which of a block's sublayers: dropout decides for each on its own.
enum class Sublayer : uint8_t { attention, cross, feed_forward };

/// The block's norm options with its threads.
NormalizeOptions norm_options(const BlockOptions& options);

/// norm(x) in a new tensor.
Tensor normed(const TensorView& x, const NormParameters& norm, const BlockOptions& options, NormalizeState* state);

/// y = drop(branch) + residual; y may be one of them. An absent residual is 0, and without dropout that is a copy.
void add_branch(const BlockOptions& options, Sublayer which, const TensorView& branch, const TensorView& residual,
                const MutableTensorView& y);

/// What the gradient of a sum is for the branch behind its dropout: `d_sum` itself, or in `memory`.
TensorView branch_gradient(const BlockOptions& options, Sublayer which, const TensorView& d_sum, Tensor& memory);

/// Computes f(input) + residual.
using SublayerRun =
    std::function<void(const TensorView& input, const MutableTensorView& output, const TensorView& residual)>;
/// Overwrites d_input with the gradient of f at the input, and adds to those of its parameters.
using SublayerBackward =
    std::function<void(const TensorView& input, const TensorView& d_output, const MutableTensorView& d_input)>;

struct SublayerNorms {
  NormParameters norm;        ///< N
  NormParameters after_norm;  ///< P
};
struct SublayerNormGradients {
  NormGradients norm;
  NormGradients after_norm;
};

/// y may be x where there is no state.
void sublayer_forward(const TensorView& x, const BlockOptions& options, Sublayer which, const SublayerNorms& norms,
                      const SublayerRun& run, const MutableTensorView& y, SublayerState* state);

/// d_x may be d_y.
struct SublayerPass {
  TensorView x;
  TensorView d_y;
  MutableTensorView d_x;
};
void sublayer_backward(const SublayerPass& pass, const BlockOptions& options, Sublayer which,
                       const SublayerNorms& norms, const SublayerState& state, const SublayerBackward& backward,
                       const SublayerNormGradients& gradients);

}  // namespace qkv
