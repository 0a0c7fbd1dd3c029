// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "qkv/attention/attention.h"
#include "qkv/attention/key_value_cache.h"
#include "qkv/nn/parameters.h"
#include "qkv/positions/rotary.h"

namespace qkv {

// Multi-head attention on rows. x is [N, width]: the N rows of all sequences, one after another. How they form
// sequences is said by AttentionOptions: query_starts and key_starts for ragged batches, which cost no padding;
// without them the rows are `batch` sequences of N / batch each, to which masks, lengths, segments and bias apply.

struct MultiHeadAttentionOptions {
  int64_t heads = 1;     ///< H
  int64_t kv_heads = 0;  ///< Hkv; 0: as many as heads
  int64_t batch = 1;     ///< sequences of equal length, where there are no starts
  /// Masks, scale, soft-cap, window, dropout: every option. bias, slopes, table and sinks may stand here as constants
  /// or among the parameters, not in both.
  AttentionOptions attention = {};
  const RotaryTable* rotary = nullptr;             ///< [N rows]: turns queries, and keys where no key_rotary is given
  const RotaryTable* key_rotary = nullptr;         ///< [rows of the memory]
  std::optional<NormalizeOptions> head_norm = {};  ///< q_norm and k_norm, over D of each head, before rotation
  TensorView residual = {};                        ///< [N, width], added to y
  int threads = 0;
};

/// What the backward needs, in the dtype of the activations but for attention's own: for N rows and M memory rows
/// N H (D + Dv) + M Hkv (D + Dv) numbers; with head_norm N H D + M Hkv D more; (m, l) a row and head; and for bf16 and
/// f16 the heads once more in f32.
struct MultiHeadAttentionState {
  Tensor q;           ///< [N, H, D], as attention read them
  Tensor k;           ///< [M, Hkv, D]
  Tensor v;           ///< [M, Hkv, Dv]
  Tensor q_unnormed;  ///< [N, H, D], with head_norm only: before it
  Tensor k_unnormed;  ///< [M, Hkv, D]
  NormalizeState q_norm, k_norm;
  Tensor heads;  ///< [N, H, Dv], what `out` was applied to
  AttentionState attention;
};

/// y [N, width] = out(attention(q(x), k(memory), v(memory))) + residual. An absent memory [M, width of the memory] is
/// x: self-attention. `state` null: nothing is kept.
void multi_head_attention_forward(const TensorView& x, const TensorView& memory, const MultiHeadAttention& parameters,
                                  const MultiHeadAttentionOptions& options, const MutableTensorView& y,
                                  MultiHeadAttentionState* state = nullptr);

/// Overwritten; an absent view is not wanted. With self-attention x takes both parts and memory must be absent.
struct MultiHeadAttentionInputGradients {
  MutableTensorView x = {};         ///< [N, width]
  MutableTensorView memory = {};    ///< [M, width of the memory]
  TensorView memory_residual = {};  ///< added to memory's gradient; `memory` itself to gather those of many layers
};
void multi_head_attention_backward(const TensorView& x, const TensorView& memory, const MultiHeadAttention& parameters,
                                   const MultiHeadAttentionOptions& options, const MultiHeadAttentionState& state,
                                   const TensorView& d_y, const MultiHeadAttentionInputGradients& d_inputs,
                                   const MultiHeadAttentionGradients& gradients);

// With a cache, for inference: first keys and values of new rows are appended, then queries attend to what the cache
// holds. The bits are those of one forward over whole sequences. Queries, keys, values and heads have the cache's
// dtype, so that f32 activations may keep their keys in bf16.
// The rows of x are as many sequences as the cache has: attention.query_starts where their lengths differ (key_starts
// must be absent), else equal parts of N; `batch` is not read.

/// Appends k(memory) and v(memory) to the cache. `memory_starts` [sequences + 1] (i64 or i32) where lengths differ.
/// Reads heads, kv_heads, head_norm, threads and key_rotary (or else rotary).
void multi_head_attention_append(const TensorView& memory, const TensorView& memory_starts,
                                 const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options,
                                 KeyValueCache& cache);

/// y = out(attention(q(x), cache)) + residual. With a causal mask (top_left or bottom_right, here the same), a window,
/// slopes or a table, the rows of a sequence are its last positions, those just appended; offsets are refused. Tensors
/// with an axis of keys have cache.longest() of them. With query_starts, tensors with an axis of queries are refused.
/// Without any of those that know positions, dropout takes the rows of a call for the first of their sequences.
void multi_head_attention_cached(const TensorView& x, const MultiHeadAttention& parameters,
                                 const MultiHeadAttentionOptions& options, const KeyValueCache& cache,
                                 const MutableTensorView& y);

}  // namespace qkv
