// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/models/config.h"

namespace qkv {

/// What a model is asked to do, for one sequence.
struct CostQuery {
  int64_t tokens = 1;         ///< new tokens of the decoder, or of an encoder
  int64_t memory_tokens = 0;  ///< tokens of the encoder of an encoder-decoder
  int64_t cache = 0;          ///< tokens a decoder has seen before these
  DType dtype = DType::f32;   ///< of weights and cache, f32 or bf16; training holds f32
};

/// Numbers of parameters.
struct ParameterCount {
  int64_t embeddings = 0;    ///< tokens, positions, token types, tables of relative positions
  int64_t projections = 0;   ///< weights to queries, keys, values and out, of all attention layers
  int64_t feed_forward = 0;  ///< weights
  int64_t biases = 0;        ///< of all these weights
  int64_t norms = 0;         ///< weights and biases
  int64_t head = 0;          ///< what the head has of its own: nothing for one that is tied, but its bias
  int64_t total() const { return embeddings + projections + feed_forward + biases + norms + head; }
};

/// Multiply-accumulates. For n tokens, k keys in all, width d, H heads of width D, Hkv key/value heads, feed-forward f,
/// of a layer:
///   projections         n d D (2 H + 2 Hkv)                            4 n d^2 where H D = Hkv D = d
///   scores and values   2 D x score entries                            2 n^2 d without a mask
///   feed-forward        2 n d f, with a gate 3 n d f
/// In a backward each product of weights costs twice its forward, and a score entry five products of D for its two.
struct PassCost {
  int64_t projections = 0;
  int64_t scores_and_values = 0;
  int64_t feed_forward = 0;
  int64_t head = 0;           ///< logits of every new token; of an encoder, if they are wanted
  int64_t score_entries = 0;  ///< pairs of a query and a key it sees, of all heads and layers, forward
  int64_t activation_bytes = 0;
  int64_t total() const { return projections + scores_and_values + feed_forward; }
  int64_t total_with_head() const { return total() + head; }
};

struct ModelCost {
  ParameterCount parameters;
  /// Forward and backward of `tokens` tokens without a cache. Activations: what the backward reads, in f32.
  PassCost training;
  /// The forward of `tokens` tokens after `cache` others. Activations: the most arrays that live at one time.
  PassCost prefill;
  /// The last of these tokens alone; nothing for an encoder.
  PassCost decode;
  int64_t weight_bytes = 0;
  int64_t gradient_bytes = 0;   ///< f32
  int64_t optimizer_bytes = 0;  ///< the two moments of Adam, f32
  int64_t cache_bytes = 0;  ///< of cache + tokens tokens: layers x kv heads x context x (D + Dv) x bytes, memory too
};

/// Exact numbers from a config alone. Throws Error where the query does not fit the kind of model or a number does not
/// fit 64 bits.
ModelCost model_cost(const ModelConfig& config, const CostQuery& query);

}  // namespace qkv
