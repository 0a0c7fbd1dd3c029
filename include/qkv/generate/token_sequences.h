// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/models/transformer.h"

namespace qkv {

/// What generation needs of a model: sequences that it has seen, and logits for what comes next. Calls are as those of
/// DecoderState and Transformer::decode.
class TokenSequences {
 public:
  virtual ~TokenSequences() = default;
  virtual int64_t vocabulary() const = 0;
  /// Tokens that a sequence may have.
  virtual int64_t most_tokens() const = 0;
  virtual int64_t length(int64_t sequence) const = 0;
  virtual Tensor decode(const TokenBatch& new_tokens, LogitRows rows) = 0;
  virtual void truncate(int64_t sequence, int64_t length) = 0;
  virtual void share_prefix(int64_t from, int64_t to, int64_t length) = 0;
  virtual void reorder(const std::vector<int64_t>& from) = 0;
};

/// Those of a Transformer, which must outlive this.
class TransformerSequences : public TokenSequences {
 public:
  TransformerSequences(const Transformer& model, DecoderState state) : model_(model), state_(std::move(state)) {}
  int64_t vocabulary() const override { return model_.config().vocabulary; }
  int64_t most_tokens() const override { return most_tokens(model_); }
  /// A table of learned positions ends; others do not.
  static int64_t most_tokens(const Transformer& model);
  int64_t length(int64_t sequence) const override { return state_.length(sequence); }
  Tensor decode(const TokenBatch& new_tokens, LogitRows rows) override {
    return model_.decode(state_, new_tokens, rows);
  }
  void truncate(int64_t sequence, int64_t length) override { state_.truncate(sequence, length); }
  void share_prefix(int64_t from, int64_t to, int64_t length) override { state_.share_prefix(from, to, length); }
  void reorder(const std::vector<int64_t>& from) override { state_.reorder(from); }

 private:
  const Transformer& model_;
  DecoderState state_;
};

}  // namespace qkv
