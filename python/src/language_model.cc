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
  std::vector<uint32_t> ids = needed_tokenizer().encode(text, {.offsets = false}).ids;
  if (ids.empty() && generation().begin_token) ids.push_back(*generation().begin_token);
  require(!ids.empty(), "generate: the prompt has no tokens, and ", generation().name,
          " has no bos_token_id to begin with");
  return ids;
}

Tensor LanguageModel::embed(const std::vector<std::string>& texts) const {
  if (embedder_) return embedder_->embed(texts);
  {
    const std::lock_guard lock(mutex_);
    if (!separate_embedder_) separate_embedder_ = SentenceEmbedder::from_folder(folder_, options_);
  }
  return separate_embedder_->embed(texts);
}

GenerateOptions LanguageModel::generate_options(GenerateCall& call) const {
  require(transformer().config().has_decoder(), "generate: ", transformer().config().model_type,
          " is an encoder and generates nothing");
  const GenerationConfig& config = generation();
  GenerateOptions options;
  options.max_tokens = call.max_tokens;
  options.sampling = call.sampling;
  options.rules = config.rules;
  if (call.repetition_penalty) options.rules.repetition_penalty = *call.repetition_penalty;
  options.end_tokens = config.end_tokens;
  options.decoder_start_token = config.decoder_start_token;
  options.beams = config.beams;
  if (call.beams) options.beams.beams = *call.beams;
  const bool draws = call.sampling.temperature > 0;
  if (call.min_p) {
    options.sampling.min_p = *call.min_p;
  } else if (draws) {
    options.sampling.min_p = config.min_p.value_or(0);
  }
  require(!draws || config.unsupported_sampling.empty(), config.name, ": ",
          config.unsupported_sampling.empty() ? "" : config.unsupported_sampling.front(),
          " is not supported with a temperature");
  require(options.beams.beams <= 1 || config.unsupported_beams.empty(), config.name, ": ",
          config.unsupported_beams.empty() ? "" : config.unsupported_beams.front(), " is not supported with beams");
  call.stops.insert(call.stops.end(), config.stops.begin(), config.stops.end());
  return options;
}

}  // namespace qkv::python
