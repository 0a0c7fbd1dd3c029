// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "qkv/generate/generate.h"
#include "qkv/generate/generation_config.h"
#include "qkv/models/sentence_embedder.h"
#include "qkv/text/tokenizer.h"

namespace qkv::python {

/// What a call of generate asks for; absent values are the folder's.
struct GenerateCall {
  SamplingOptions sampling;
  int64_t max_tokens = 0;
  std::optional<double> min_p, repetition_penalty;
  std::optional<int64_t> beams;
  std::vector<std::string> stops;
};

/// A model's folder: the model, and what else is there. Const calls may run in several threads at once.
class LanguageModel {
 public:
  LanguageModel(std::string folder, const TransformerOptions& options);

  const Transformer& transformer() const { return embedder_ ? embedder_->transformer() : *transformer_; }
  const std::optional<Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Throws SystemError where the folder has no tokenizer.json.
  const Tokenizer& needed_tokenizer() const;
  /// The tokens of a prompt; of an empty one the token that the folder says it begins with.
  std::vector<uint32_t> prompt(const std::string& text) const;
  Tensor embed(const std::vector<std::string>& texts) const;
  /// `call` as options, with what the folder says about the rest; its stop texts join those of `call`.
  GenerateOptions generate_options(GenerateCall& call) const;

 private:
  const GenerationConfig& generation() const;

  std::string folder_;
  TransformerOptions options_;
  std::optional<Transformer> transformer_;
  std::optional<Tokenizer> tokenizer_;
  mutable std::mutex mutex_;  ///< guards what is read when it is first needed
  mutable std::optional<SentenceEmbedder> embedder_, separate_embedder_;
  mutable std::optional<GenerationConfig> generation_;
};

}  // namespace qkv::python
