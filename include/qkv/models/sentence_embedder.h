// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "qkv/models/transformer.h"

namespace qkv {

/// Sentence embeddings as a folder of sentence-transformers describes them: a model, its tokenizer, how many tokens of
/// a text count, how hidden states are pooled, and whether the result is normalised. Const calls may run at the same
/// time.
class SentenceEmbedder {
 public:
  /// Reads modules.json with the files it names; without one, the mean over tokens. Texts are cut to max_seq_length of
  /// sentence_bert_config.json, special tokens included; without that to the lesser of the tokenizer's and the model's
  /// own length, whatever tokenizer.json says. Throws SystemError for missing files, and Error for modules or values
  /// that are not supported.
  static SentenceEmbedder from_folder(const std::string& folder, const TransformerOptions& options = {});
  /// The same around the folder's model, which somebody has read before.
  static SentenceEmbedder from_folder(const std::string& folder, std::shared_ptr<const Transformer> transformer);
  SentenceEmbedder(SentenceEmbedder&&) noexcept;
  SentenceEmbedder& operator=(SentenceEmbedder&&) noexcept;
  ~SentenceEmbedder();

  int64_t width() const;
  const Transformer& transformer() const;
  /// Embeddings [texts, width], f32. A row depends on its text alone; texts are packed, not padded. Throws Error that
  /// names the text for invalid UTF-8.
  Tensor embed(std::span<const std::string> texts) const;

 private:
  struct Parts;
  explicit SentenceEmbedder(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace qkv
