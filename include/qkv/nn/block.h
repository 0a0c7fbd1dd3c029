// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/nn/feed_forward.h"
#include "qkv/nn/multi_head_attention.h"

namespace qkv {

/// How sublayers A (self-attention), C (attention to a memory, where there is one) and F (feed-forward) are composed
/// with their norms N and, in sandwiches, P.
enum class BlockForm : uint8_t {
  pre_norm,         ///< x += A(N1 x); x += C(N2 x); x += F(N3 x)                  GPT-2, Llama, T5
  post_norm,        ///< x = N1(x + A x); x = N2(x + C x); x = N3(x + F x)          BERT, BART, Vaswani et al.
  sandwich,         ///< x += P1(A(N1 x)); x += P2(C(N2 x)); x += P3(F(N3 x))       Gemma-2
  parallel,         ///< x += A(N1 x) + F(N3 x), no memory                          GPT-NeoX
  parallel_shared,  ///< x += A(N1 x) + F(N1 x), no memory                    GPT-J
};

struct BlockOptions {
  BlockForm form = BlockForm::pre_norm;
  NormalizeOptions norm = {};  ///< of every norm of the block; its residual must be absent
  MultiHeadAttentionOptions attention = {};
  MultiHeadAttentionOptions cross = {};  ///< used with a memory
  FeedForwardOptions feed_forward = {};  ///< residuals of these three must be absent
  /// Of what each sublayer adds, before it is added. Its seed is mixed with a number for each of them.
  DropoutOptions dropout = {};
  int threads = 0;  ///< of norms and dropout; sublayers have their own
};

/// What one sublayer's backward needs beside its own state: three arrays [N, width] at most.
struct SublayerState {
  Tensor normed;          ///< what the sublayer read, where a norm comes before it
  NormalizeState before;  ///< of that norm
  Tensor branch;          ///< sandwich: what the sublayer gave
  Tensor sum;             ///< post_norm: what the norm read
  NormalizeState after;   ///< of the norm after it
};

/// What a block's backward needs: its input is the caller's, intermediate rows stand here.
struct BlockState {
  SublayerState attention_part, cross_part, feed_forward_part;
  MultiHeadAttentionState attention, cross;
  FeedForwardState feed_forward;
  Tensor after_attention;  ///< [N, width], where another sublayer reads it
  Tensor after_cross;      ///< [N, width]
};

/// y [N, width] from x [N, width], with cross-attention to `memory` [M, width of the memory] where that is there. y may
/// be x itself where no state is kept.
void block_forward(const TensorView& x, const TensorView& memory, const Block& block, const BlockOptions& options,
                   const MutableTensorView& y, BlockState* state = nullptr);

struct BlockInputGradients {
  MutableTensorView x = {};       ///< overwritten
  MutableTensorView memory = {};  ///< added to: every block of a decoder reads the memory
};
/// Gradients of parameters are added to. d_inputs.x may be d_y itself.
void block_backward(const TensorView& x, const TensorView& memory, const Block& block, const BlockOptions& options,
                    const BlockState& state, const TensorView& d_y, const BlockInputGradients& d_inputs,
                    const BlockGradients& gradients);

/// The caches of one block; `cross` null: no memory. Its keys are appended once, by multi_head_attention_append.
struct BlockCache {
  KeyValueCache* self = nullptr;
  const KeyValueCache* cross = nullptr;
};
/// The same rows as block_forward over whole sequences gives for the last ones: appends x's keys and values to
/// `cache.self`, then attends to it. y may be x itself.
void block_cached(const TensorView& x, const Block& block, const BlockOptions& options, const BlockCache& cache,
                  const MutableTensorView& y);

}  // namespace qkv
