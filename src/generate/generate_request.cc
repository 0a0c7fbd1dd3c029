// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/generate_request.h"

#include "qkv/support/error.h"

namespace qkv {

GenerateOptions options_of(const GenerateRequest& request, const GenerationConfig& config) {
  GenerateOptions options;
  options.max_tokens = request.max_tokens;
  options.sampling = request.sampling;
  options.rules = config.rules;
  options.rules.repetition_penalty = request.repetition_penalty.value_or(config.rules.repetition_penalty);
  options.end_tokens = config.end_tokens;
  options.decoder_start_token = config.decoder_start_token;
  options.beams = config.beams;
  options.beams.beams = request.beams.value_or(config.beams.beams);
  const bool draws = request.sampling.temperature > 0, searches = options.beams.beams > 1;
  options.sampling.min_p = request.min_p.value_or(draws ? config.min_p.value_or(0) : 0);
  require(request.beams || !searches || (!draws && !request.has_draft), config.name, ": num_beams ",
          options.beams.beams, " and a ", draws ? "temperature" : "draft",
          " exclude each other; asking for 1 beam searches nothing");
  const auto refuse = [&](const std::vector<std::string>& values, const char* with) {
    if (!values.empty()) fail(config.name, ": ", values.front(), " is not supported with ", with);
  };
  if (draws) refuse(config.unsupported_sampling, "a temperature");
  if (searches) refuse(config.unsupported_beams, "beams");
  return options;
}

std::vector<uint32_t> prompt_tokens(const std::string& text, const Tokenizer& tokenizer, const GenerationConfig& config,
                                    const std::string& where) {
  std::vector<uint32_t> ids;
  try {
    ids = tokenizer.encode(text, {.offsets = false}).ids;
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
  if (ids.empty() && config.begin_token) ids.push_back(*config.begin_token);
  require(!ids.empty(), where, ": the text has no tokens, and ", config.name, " has no bos_token_id to begin with");
  return ids;
}

}  // namespace qkv
