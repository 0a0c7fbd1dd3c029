// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "models/transformer_parts.h"
#include "qkv/nn/embedding.h"
#include "qkv/nn/linear.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"

namespace qkv::models {
namespace {

int64_t* integers(Tensor& tensor) { return static_cast<int64_t*>(tensor.mutable_view().data()); }

void check_starts(std::span<const int64_t> starts, size_t tokens, const char* what) {
  require(starts.front() == 0 && starts.back() == static_cast<int64_t>(tokens), "transformer: ", what,
          " starts: expected 0 ... ", tokens, ", the number of tokens, got ", starts.front(), " ... ", starts.back());
  for (size_t b = 1; b < starts.size(); ++b) {
    require(starts[b] >= starts[b - 1], "transformer: ", what, " starts: expected no decrease, got ", starts[b],
            " after ", starts[b - 1]);
  }
}

/// Rows of the position table: RoBERTa's do not count padding.
Tensor table_rows(const TokenRows& rows, const ModelConfig& config) {
  Tensor result(DType::i64, {rows.rows()});
  const auto* ids = static_cast<const int64_t*>(rows.ids.view().data());
  const auto* positions = static_cast<const int64_t*>(rows.positions.view().data());
  int64_t padding = 0;
  for (int64_t n = 0; n < rows.rows(); ++n) {
    if (positions[n] == 0) padding = 0;
    const bool stays = config.padding_stays && ids[n] == config.pad_token;
    integers(result)[n] = stays ? config.first_position - 1 : config.first_position + positions[n] - padding;
    padding += config.padding_stays && stays ? 1 : 0;
  }
  return result;
}

/// x = cap tanh(x / cap)
void cap_logits(Tensor& logits, double softcap, int threads) {
  const int64_t rows = logits.shape()[0], columns = logits.shape()[1];
  const auto cap = static_cast<float>(softcap);
  auto* values = static_cast<float*>(logits.mutable_view().data());
  constexpr int64_t kPiece = 4096;
  const int64_t pieces = (rows * columns + kPiece - 1) / kPiece;
  parallel_for(pieces, threads, [&](int64_t piece, int) {
    const int64_t end = std::min(rows * columns, (piece + 1) * kPiece);
    for (int64_t n = piece * kPiece; n < end; ++n) values[n] = cap * std::tanh(values[n] / cap);
  });
}

}  // namespace

TokenRows token_rows(const TokenBatch& batch, const ModelConfig& config, const std::vector<int64_t>& seen,
                     const char* what) {
  const std::array<int64_t, 2> whole{0, static_cast<int64_t>(batch.tokens.size())};
  const std::span<const int64_t> starts = batch.starts.empty() ? std::span<const int64_t>(whole) : batch.starts;
  check_starts(starts, batch.tokens.size(), what);
  require(seen.empty() || seen.size() + 1 == starts.size(), "transformer: ", what, ": expected ", seen.size(),
          " sequences, got ", starts.size() - 1);
  TokenRows rows;
  rows.ids = Tensor(DType::i64, {whole[1]});
  rows.positions = Tensor(DType::i64, {whole[1]});
  rows.starts = Tensor(DType::i64, {static_cast<int64_t>(starts.size())});
  std::copy(starts.begin(), starts.end(), integers(rows.starts));
  for (size_t b = 0; b + 1 < starts.size(); ++b) {
    const int64_t before = seen.empty() ? 0 : seen[b];
    const int64_t length = before + starts[b + 1] - starts[b];
    require(!config.learned_positions || length <= config.positions, "transformer: ", what, ": sequence ", b, " has ",
            length, " tokens, the model at most ", config.positions, " positions");
    for (int64_t n = starts[b]; n < starts[b + 1]; ++n) {
      const uint32_t id = batch.tokens[static_cast<size_t>(n)];
      require(id < config.vocabulary, "transformer: ", what, ": token ", id, " at place ", n, " is outside the ",
              "vocabulary of ", config.vocabulary);
      integers(rows.ids)[n] = id;
      integers(rows.positions)[n] = before + n - starts[b];
    }
  }
  return rows;
}

Tensor embed_tokens(const Transformer::Parts& parts, const InputWeights& input, const TokenRows& rows) {
  const ModelConfig& config = parts.config;
  const int threads = parts.options.threads;
  Tensor x(parts.options.dtype, {rows.rows(), config.width});
  EmbeddingOptions options{.scale = config.embedding_scale, .residual = {}, .threads = threads};
  if (input.positions) {
    EmbeddingOptions positions{.scale = 1, .residual = {}, .threads = threads};
    if (input.token_types) {  // all tokens are of the first type
      positions.residual =
          TensorView(input.token_types.dtype(), input.token_types.data(), x.shape(), {0, input.token_types.stride(1)});
    }
    embedding_forward(input.positions, table_rows(rows, config).view(), x.mutable_view(), positions);
    options.residual = x.view();
  }
  embedding_forward(parts.weights.embedding, rows.ids.view(), x.mutable_view(), options);
  if (config.embedding_norm) {
    const NormalizeOptions norm{.kind = config.norm, .epsilon = config.norm_epsilon, .threads = threads};
    normalize(x.view(), input.norm.weight, input.norm.bias, x.mutable_view(), norm);
  }
  return x;
}

void check_head(const Transformer::Parts& parts) {
  require(parts.weights.has_head, parts.checkpoint.where(), ": this ", parts.config.model_type, " has no ",
          parts.config.mask_head ? "masked-language-model head" : "language-model head, lm_head.weight",
          ": it gives hidden states, but no logits");
}

Tensor head_logits(const Transformer::Parts& parts, const TensorView& hidden) {
  const ModelConfig& config = parts.config;
  const ModelWeights& weights = parts.weights;
  const int threads = parts.options.threads;
  Tensor logits(DType::f32, {hidden.size(0), config.vocabulary});
  Tensor transformed;
  TensorView x = hidden;
  if (config.mask_head) {
    transformed = Tensor(hidden.dtype(), hidden.shape());
    linear_forward(hidden, weights.head_dense, transformed.mutable_view(),
                   {.activation = config.head_activation, .threads = threads});
    const NormalizeOptions norm{.kind = config.norm, .epsilon = config.norm_epsilon, .threads = threads};
    normalize(transformed.view(), weights.head_norm.weight, weights.head_norm.bias, transformed.mutable_view(), norm);
    x = transformed.view();
  } else if (config.head_scale != 1) {
    transformed = Tensor(hidden.dtype(), hidden.shape());
    const MutableTensorView scaled = transformed.mutable_view();
    for (int64_t n = 0; n < hidden.elements(); ++n) {
      store_as(scaled.dtype(), scaled.at(n),
               load_as<float>(hidden.dtype(), hidden.at(n)) * static_cast<float>(config.head_scale));
    }
    x = transformed.view();
  }
  linear_forward(x, weights.head, logits.mutable_view(), {.threads = threads});
  if (config.logit_softcap > 0) cap_logits(logits, config.logit_softcap, threads);
  return logits;
}

}  // namespace qkv::models
