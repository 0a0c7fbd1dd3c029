// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "qkv/generate/generate_request.h"
#include "qkv/models/sentence_embedder.h"
#include "qkv/text/tokenizer.h"

namespace qkv::python {

/// A model's folder: the model, and what else is there, read when it is first needed. Const calls may run in several
/// threads at once; none with the interpreter's lock, since they wait for each other's reading.
class LanguageModel {
 public:
  LanguageModel(std::string folder, const TransformerOptions& options);

  const Transformer& transformer() const { return *transformer_; }
  const std::optional<Tokenizer>& tokenizer() const { return tokenizer_; }
  /// Throws SystemError where the folder has no tokenizer.json.
  const Tokenizer& needed_tokenizer() const;
  /// The tokens of a prompt; of an empty one the token that the folder says it begins with.
  std::vector<uint32_t> prompt(const std::string& text) const;
  Tensor embed(const std::vector<std::string>& texts) const;
  /// A request with what the folder says about the rest; throws Error for an encoder.
  GenerateOptions options_of(const GenerateRequest& request) const;
  /// Stop texts of a caller, with those of the folder.
  std::vector<std::string> stops(std::vector<std::string> own) const;

 private:
  const GenerationConfig& generation() const;

  std::string folder_;
  std::shared_ptr<const Transformer> transformer_;
  std::optional<Tokenizer> tokenizer_;
  mutable std::once_flag embedder_read_, generation_read_;
  mutable std::optional<SentenceEmbedder> embedder_;
  mutable std::optional<GenerationConfig> generation_;
};

}  // namespace qkv::python
