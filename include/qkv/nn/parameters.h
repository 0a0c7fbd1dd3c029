// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <vector>

#include "qkv/kernels/matmul.h"
#include "qkv/kernels/normalize.h"

namespace qkv {

// Parameters of layers are structs of views; the gradients of a layer are the same struct with writable views. An
// absent view is a parameter that the layer does not have; in gradients, one whose gradient is not wanted. Gradients
// are added to what is there (zero them before the first step), in their own dtype: f32 gradients of bf16 weights are
// the rule. Weights may be f32, bf16 or f16, all f64 with f64 activations, of any strides.

struct NothingPacked {};

/// y = x weight^T + bias. Checkpoints that store [in, out] give transposed(weight).
template <class View>
struct LinearOf {
  View weight = {};  ///< [out, in]
  View bias = {};    ///< [out]
  /// The weight, packed: PackedMatrix(transposed(weight)). Where it is set the forward reads it, and `weight` may be
  /// absent; a backward needs `weight`.
  std::conditional_t<std::is_same_v<View, TensorView>, PackedMatrix, NothingPacked> packed = {};
};

/// Weight and bias [width] of a normalisation, both optional. Which one it is stands in its NormalizeOptions.
template <class View>
struct NormOf {
  View weight = {};
  View bias = {};
};

/// down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)): SwiGLU with silu, GeGLU with gelu.
template <class View>
struct FeedForwardOf {
  LinearOf<View> up = {};    ///< [hidden, width]
  LinearOf<View> gate = {};  ///< [hidden, width]; absent: no gate
  LinearOf<View> down = {};  ///< [width, hidden]
};

/// Multi-head attention: H heads of D = q.weight rows / H, Hkv key/value heads, Dv = v.weight rows / Hkv.
template <class View>
struct MultiHeadAttentionOf {
  LinearOf<View> q = {};    ///< [H D, width]
  LinearOf<View> k = {};    ///< [Hkv D, width of the memory]
  LinearOf<View> v = {};    ///< [Hkv Dv, width of the memory]
  LinearOf<View> out = {};  ///< [width, H Dv]
  NormOf<View> q_norm =
      {};  ///< [D], of each query head before rotation; used with MultiHeadAttentionOptions::head_norm
  NormOf<View> k_norm = {};  ///< [D]
  // Of AttentionOptions, where they are trainable; shapes stand there. Gradients have the dtype of their tensor.
  View bias = {};
  View slopes = {};
  View table = {};
  View sinks = {};
};

/// The three sublayers of a block, each with its norms; which are used is said by BlockForm.
template <class View>
struct BlockOf {
  NormOf<View> attention_norm = {};
  NormOf<View> attention_after_norm = {};  ///< sandwich only
  MultiHeadAttentionOf<View> attention = {};
  NormOf<View> cross_norm = {};
  NormOf<View> cross_after_norm = {};     ///< sandwich only
  MultiHeadAttentionOf<View> cross = {};  ///< used in blocks that attend to a memory
  NormOf<View> feed_forward_norm = {};
  NormOf<View> feed_forward_after_norm = {};  ///< sandwich only
  FeedForwardOf<View> feed_forward = {};
};

template <class View>
struct StackOf {
  std::vector<BlockOf<View>> blocks = {};
  NormOf<View> final_norm = {};  ///< used with StackOptions::final_norm
};

using Linear = LinearOf<TensorView>;
using LinearGradients = LinearOf<MutableTensorView>;
using NormParameters = NormOf<TensorView>;
using NormGradients = NormOf<MutableTensorView>;
using FeedForward = FeedForwardOf<TensorView>;
using FeedForwardGradients = FeedForwardOf<MutableTensorView>;
using MultiHeadAttention = MultiHeadAttentionOf<TensorView>;
using MultiHeadAttentionGradients = MultiHeadAttentionOf<MutableTensorView>;
using Block = BlockOf<TensorView>;
using BlockGradients = BlockOf<MutableTensorView>;
using Stack = StackOf<TensorView>;
using StackGradients = StackOf<MutableTensorView>;

}  // namespace qkv
