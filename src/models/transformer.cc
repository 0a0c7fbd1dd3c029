// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/transformer.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "models/transformer_parts.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

void check_options(const TransformerOptions& options) {
  require(options.dtype == DType::f32 || options.dtype == DType::bf16, "transformer: dtype: expected f32 or bf16, got ",
          name(options.dtype));
}

/// The last row of each sequence that has one.
Tensor last_rows(const Tensor& hidden, const Tensor& starts) {
  const auto* start = static_cast<const int64_t*>(starts.view().data());
  std::vector<int64_t> rows;
  for (int64_t b = 0; b + 1 < starts.shape()[0]; ++b) {
    if (start[b + 1] > start[b]) rows.push_back(start[b + 1] - 1);
  }
  const int64_t width = hidden.shape()[1];
  Tensor result(hidden.dtype(), {static_cast<int64_t>(rows.size()), width});
  for (size_t n = 0; n < rows.size(); ++n) {
    std::memcpy(result.mutable_view().at(static_cast<int64_t>(n) * width), hidden.view().at(rows[n] * width),
                static_cast<size_t>(width * size_of(hidden.dtype())));
  }
  return result;
}

Tensor run_encoder(const Transformer::Parts& parts, const models::TokenRows& rows) {
  Tensor x = models::embed_tokens(parts, parts.weights.encoder_input, rows);
  const models::BoundOptions options(parts.encoder, parts.config, parts.config.encoder, rows, {});
  stack_forward(x.view(), {}, parts.weights.encoder, *options, x.mutable_view());
  return x;
}

Tensor run_decoder(const Transformer::Parts& parts, const models::TokenRows& rows, const TensorView& memory,
                   const TensorView& memory_starts) {
  Tensor x = models::embed_tokens(parts, parts.weights.decoder_input, rows);
  const models::BoundOptions options(parts.decoder, parts.config, parts.config.decoder, rows, memory_starts);
  stack_forward(x.view(), memory, parts.weights.decoder, *options, x.mutable_view());
  return x;
}

}  // namespace

Transformer::Transformer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

const ModelConfig& Transformer::config() const { return parts_->config; }
const TransformerOptions& Transformer::options() const { return parts_->options; }

Transformer Transformer::from_folder(const std::string& folder, const TransformerOptions& options) {
  check_options(options);
  const ModelConfig config = read_model_config((std::filesystem::path(folder) / "config.json").string());
  return Transformer(make_parts(config, models::Checkpoint::read(folder), options));
}

Transformer Transformer::from_tensors(const ModelConfig& config, std::map<std::string, Tensor> tensors,
                                      const TransformerOptions& options, const std::string& name) {
  check_options(options);
  return Transformer(make_parts(config, models::Checkpoint(std::move(tensors), name), options));
}

Transformer Transformer::random(const ModelConfig& config, uint64_t seed, const TransformerOptions& options) {
  check_options(options);
  return Transformer(make_parts(config, models::Checkpoint::random(seed), options));
}

std::unique_ptr<const Transformer::Parts> Transformer::make_parts(const ModelConfig& config,
                                                                  models::Checkpoint checkpoint,
                                                                  const TransformerOptions& options) {
  models::ModelWeights weights = models::bind_weights(checkpoint, config);
  models::pack_weights(weights, options);
  return std::make_unique<const Parts>(Parts{config, options, std::move(checkpoint), std::move(weights),
                                             models::stack_options(config, config.encoder, false, options.threads),
                                             models::stack_options(config, config.decoder, true, options.threads)});
}

Tensor Transformer::hidden(const TokenBatch& batch) const {
  const models::TokenRows rows = models::token_rows(batch, config(), {}, "tokens");
  return config().has_encoder() ? run_encoder(*parts_, rows) : run_decoder(*parts_, rows, {}, {});
}

Tensor Transformer::logits(const TokenBatch& batch) const {
  require(config().kind != ModelKind::encoder_decoder, "transformer: ", config().model_type,
          " is an encoder-decoder: its logits need the tokens of the decoder too");
  models::check_head(*parts_);
  return models::head_logits(*parts_, hidden(batch).view());
}

Tensor Transformer::logits(const TokenBatch& batch, const TokenBatch& decoder_batch) const {
  require(config().kind == ModelKind::encoder_decoder, "transformer: ", config().model_type,
          " is no encoder-decoder: ", "it takes no decoder tokens");
  models::check_head(*parts_);
  const models::TokenRows source = models::token_rows(batch, config(), {}, "tokens");
  const models::TokenRows target = models::token_rows(decoder_batch, config(), {}, "decoder tokens");
  require(source.sequences() == target.sequences(), "transformer: decoder tokens: expected ", source.sequences(),
          " sequences, got ", target.sequences());
  const Tensor memory = run_encoder(*parts_, source);
  return models::head_logits(*parts_, run_decoder(*parts_, target, memory.view(), source.starts.view()).view());
}

DecoderState Transformer::start(int64_t sequences) const {
  require(config().kind == ModelKind::decoder, "transformer: ", config().model_type, " is no decoder: ",
          config().has_decoder() ? "its state starts from tokens of the encoder" : "it has no state to decode with");
  require(sequences >= 0, "transformer: expected a number of sequences, got ", sequences);
  models::check_head(*parts_);
  auto storage = std::make_unique<DecoderState::Storage>();
  storage->sequences = sequences;
  const StackConfig& stack = config().decoder;
  for (size_t n = 0; n < stack.layers.size(); ++n) {
    storage->self.emplace_back(sequences, stack.kv_heads, stack.head_width, stack.head_width, options().dtype);
  }
  return DecoderState(std::move(storage));
}

DecoderState Transformer::start(const TokenBatch& batch) const {
  require(config().kind == ModelKind::encoder_decoder, "transformer: ", config().model_type,
          " is no encoder-decoder: its state starts from no tokens");
  models::check_head(*parts_);
  const models::TokenRows rows = models::token_rows(batch, config(), {}, "tokens");
  const Tensor memory = run_encoder(*parts_, rows);
  auto storage = std::make_unique<DecoderState::Storage>();
  storage->sequences = rows.sequences();
  const StackConfig& stack = config().decoder;
  for (size_t n = 0; n < stack.layers.size(); ++n) {
    const int64_t D = stack.head_width;
    storage->self.emplace_back(rows.sequences(), stack.kv_heads, D, D, options().dtype);
    KeyValueCache& cross = storage->cross.emplace_back(rows.sequences(), stack.kv_heads, D, D, options().dtype);
    multi_head_attention_append(memory.view(), rows.starts.view(), parts_->weights.decoder.blocks[n].cross,
                                parts_->decoder.blocks[n].cross, cross);
  }
  return DecoderState(std::move(storage));
}

Tensor Transformer::decode(DecoderState& state, const TokenBatch& new_tokens, LogitRows wanted) const {
  DecoderState::Storage& storage = state.storage();
  require(storage.self.size() == config().decoder.layers.size(), "transformer: the state belongs to another model");
  std::vector<int64_t> seen;
  for (int64_t b = 0; b < storage.sequences; ++b) seen.push_back(storage.self.front().length(b));
  const models::TokenRows rows = models::token_rows(new_tokens, config(), seen, "new tokens");
  std::vector<BlockCache> caches;
  for (size_t n = 0; n < storage.self.size(); ++n) {
    caches.push_back({&storage.self[n], storage.cross.empty() ? nullptr : &storage.cross[n]});
  }
  try {
    Tensor x = models::embed_tokens(*parts_, parts_->weights.decoder_input, rows);
    const models::BoundOptions options(parts_->decoder, config(), config().decoder, rows);
    stack_cached(x.view(), parts_->weights.decoder, *options, caches, x.mutable_view());
    return models::head_logits(*parts_, (wanted == LogitRows::all ? x : last_rows(x, rows.starts)).view());
  } catch (...) {  // some layers may have taken the new tokens, others not
    for (int64_t b = 0; b < storage.sequences; ++b) state.truncate(b, seen[static_cast<size_t>(b)]);
    throw;
  }
}

}  // namespace qkv
