// SPDX-License-Identifier: Apache-2.0
#include "python/src/language_model.h"

#include <filesystem>
#include <utility>

#include "qkv/support/error.h"

namespace qkv::python {

LanguageModel::LanguageModel(std::string folder, const TransformerOptions& options)
    : folder_(std::move(folder)), options_(options) {
  const std::filesystem::path place(folder_);
  if (std::filesystem::exists(place / "modules.json")) {
    embedder_ = SentenceEmbedder::from_folder(folder_, options_);
  } else {
    transformer_ = Transformer::from_folder(folder_, options_);
  }
  const std::string path = (place / "tokenizer.json").string();
  if (std::filesystem::exists(path)) tokenizer_ = Tokenizer::read(path);
}

const Tokenizer& LanguageModel::needed_tokenizer() const {
  if (!tokenizer_) throw SystemError(folder_ + ": a text needs the file tokenizer.json, which is not there");
  return *tokenizer_;
}

const GenerationConfig& LanguageModel::generation() const {
  const std::lock_guard lock(mutex_);
  if (!generation_) generation_ = read_generation_config(folder_, transformer().config());
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
  if (embedder_) return embedder_->embed(texts);
  {
    const std::lock_guard lock(mutex_);
    if (!separate_embedder_) separate_embedder_ = SentenceEmbedder::from_folder(folder_, options_);
  }
  return separate_embedder_->embed(texts);
}

GenerateOptions LanguageModel::options_of(const GenerateRequest& request) const {
  require(transformer().config().has_decoder(), "generate: ", transformer().config().model_type,
          " is an encoder and generates nothing");
  return qkv::options_of(request, generation());
}

}  // namespace qkv::python
