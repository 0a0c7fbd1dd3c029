// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "qkv/generate/token_sequences.h"
#include "random_stream.h"

namespace qkv::test {

/// A model that is a table: the logits after a sequence are numbers drawn from its tokens. Where `agrees` is a
/// fraction, so often are they those of the seed 0, so that models of different seeds agree as a draft does with its
/// model.
struct TableModel {
  uint64_t seed = 0;
  int64_t vocabulary = 5;
  double agrees = 0;

  std::vector<float> logits(const std::vector<uint32_t>& tokens) const {
    uint64_t key = 17;
    for (const uint32_t token : tokens) key = mix64(key ^ token);
    const bool common = Stream(mix64(key ^ 5)).uniform() < agrees;
    Stream random(mix64(key ^ mix64(common ? 0 : seed)));
    std::vector<float> row(static_cast<size_t>(vocabulary));
    for (float& logit : row) logit = static_cast<float>(2 * random.normal());
    return row;
  }
};

/// Its sequences, which count the tokens they are fed.
class TableSequences : public TokenSequences {
 public:
  TableSequences(const TableModel& model, size_t sequences, int64_t most_tokens = std::numeric_limits<int64_t>::max())
      : model_(model), most_(most_tokens), seen_(sequences) {}

  int64_t vocabulary() const override { return model_.vocabulary; }
  int64_t most_tokens() const override { return most_; }
  int64_t length(int64_t sequence) const override { return static_cast<int64_t>(at(sequence).size()); }
  Tensor decode(const TokenBatch& batch, LogitRows rows) override {
    std::vector<float> all;
    const std::vector<int64_t> alone{0, static_cast<int64_t>(batch.tokens.size())};
    const std::span<const int64_t> starts = batch.starts.empty() ? std::span<const int64_t>(alone) : batch.starts;
    for (size_t b = 0; b + 1 < starts.size(); ++b) {
      for (int64_t n = starts[b]; n < starts[b + 1]; ++n) {
        seen_.at(b).push_back(batch.tokens[static_cast<size_t>(n)]);
        if (rows == LogitRows::last && n + 1 < starts[b + 1]) continue;
        const std::vector<float> row = model_.logits(seen_[b]);
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    fed += static_cast<int64_t>(batch.tokens.size());
    ++passes;
    Tensor result(DType::f32, {static_cast<int64_t>(all.size()) / model_.vocabulary, model_.vocabulary});
    std::copy(all.begin(), all.end(), static_cast<float*>(result.mutable_view().data()));
    return result;
  }
  void truncate(int64_t sequence, int64_t length) override { at(sequence).resize(static_cast<size_t>(length)); }
  void share_prefix(int64_t from, int64_t to, int64_t length) override {
    at(to).assign(at(from).begin(), at(from).begin() + length);
  }
  void reorder(const std::vector<int64_t>& from) override {
    std::vector<std::vector<uint32_t>> next;
    for (const int64_t b : from) next.push_back(at(b));
    seen_ = next;
  }

  int64_t fed = 0, passes = 0;

 private:
  std::vector<uint32_t>& at(int64_t sequence) { return seen_.at(static_cast<size_t>(sequence)); }
  const std::vector<uint32_t>& at(int64_t sequence) const { return seen_.at(static_cast<size_t>(sequence)); }

  const TableModel& model_;
  int64_t most_;
  std::vector<std::vector<uint32_t>> seen_;
};

}  // namespace qkv::test
