// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "models/weights.h"
#include "qkv/attention/key_value_cache.h"
#include "qkv/models/transformer.h"
#include "qkv/nn/stack.h"
#include "qkv/positions/rotary.h"

namespace qkv {

struct Transformer::Parts {
  ModelConfig config;
  TransformerOptions options;
  models::Checkpoint checkpoint;  ///< keeps what the weights view
  models::ModelWeights weights;
  StackOptions encoder, decoder;  ///< of every call, before BoundOptions
};

struct DecoderState::Storage {
  std::vector<KeyValueCache> self;   ///< one for each layer
  std::vector<KeyValueCache> cross;  ///< likewise, of an encoder-decoder
  int64_t sequences = 0;
};

namespace models {

/// Ids and positions of the rows of a batch.
struct TokenRows {
  Tensor ids;        ///< [N] i64
  Tensor positions;  ///< [N] i64: places in their sequences
  Tensor starts;     ///< [sequences + 1] i64
  int64_t rows() const { return ids.shape()[0]; }
  int64_t sequences() const { return starts.shape()[0] - 1; }
};

/// Checks a batch: starts, ids below the vocabulary, sequences within a learned position table. `seen` holds how many
/// tokens each sequence has before these; empty: none.
TokenRows token_rows(const TokenBatch& batch, const ModelConfig& config, const std::vector<int64_t>& seen,
                     const char* what);

/// The rows [N, width] that a stack reads.
Tensor embed_tokens(const Transformer::Parts& parts, const InputWeights& input, const TokenRows& rows);
/// Throws Error where the model has no head.
void check_head(const Transformer::Parts& parts);
/// Logits [N, vocabulary] f32 of hidden states [N, width].
Tensor head_logits(const Transformer::Parts& parts, const TensorView& hidden);

StackOptions stack_options(const ModelConfig& config, const StackConfig& stack, bool is_decoder, int threads);
/// Rounds all weights to the dtype where it is bf16 and packs those of products.
void pack_weights(ModelWeights& weights, const TransformerOptions& options);

/// Options of one call: how the rows form sequences, and where they stand.
class BoundOptions {
 public:
  /// Of whole sequences; `memory_starts` where there is a memory.
  BoundOptions(const StackOptions& options, const ModelConfig& config, const StackConfig& stack, const TokenRows& rows,
               const TensorView& memory_starts);
  /// Of the last rows of sequences in a cache.
  BoundOptions(const StackOptions& options, const ModelConfig& config, const StackConfig& stack, const TokenRows& rows);
  BoundOptions(const BoundOptions&) = delete;
  BoundOptions& operator=(const BoundOptions&) = delete;
  const StackOptions& operator*() const { return options_; }

 private:
  StackOptions options_;
  std::vector<RotaryTable> rotary_;
};

}  // namespace models
}  // namespace qkv
