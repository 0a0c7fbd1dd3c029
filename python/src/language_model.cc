// SPDX-License-Identifier: Apache-2.0
#include "python/src/language_model.h"

#include <filesystem>
#include <utility>

#include "qkv/support/error.h"

namespace qkv::python {

LanguageModel::LanguageModel(std::string folder, const TransformerOptions& options)
    : folder_(std::move(folder)),
      transformer_(std::make_shared<const Transformer>(Transformer::from_folder(folder_, options))) {
  const std::string path = (std::filesystem::path(folder_) / "tokenizer.json").string();
  if (std::filesystem::exists(path)) tokenizer_ = Tokenizer::read(path);
}

const Tokenizer& LanguageModel::needed_tokenizer() const {
  if (!tokenizer_) throw SystemError(folder_ + ": a text needs the file tokenizer.json, which is not there");
  return *tokenizer_;
}

const GenerationConfig& LanguageModel::generation() const {
  std::call_once(generation_read_, [&] { generation_ = read_generation_config(folder_, transformer().config()); });
  return *generation_;
}

std::vector<uint32_t> LanguageModel::prompt(const std::string& text) const {
  return prompt_tokens(text, needed_tokenizer(), generation(), "generate");
}

std::vector<std::string> LanguageModel::stops(std::vector<std::string> own) const {
  own.insert(own.end(), generation().stops.begin(), generation().stops.end());
  return own;
}

Tensor LanguageModel::embed(const std::vector<std::string>& texts) const {
  std::call_once(embedder_read_, [&] { embedder_ = SentenceEmbedder::from_folder(folder_, transformer_); });
  return embedder_->embed(texts);
}

GenerateOptions LanguageModel::options_of(const GenerateRequest& request) const {
  require(transformer().config().has_decoder(), "generate: ", transformer().config().model_type,
          " is an encoder and generates nothing");
  return qkv::options_of(request, generation());
}

}  // namespace qkv::python
