// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/generate.h"

#include <algorithm>
#include <limits>
#include <map>

#include "generate/prompts.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

void check_options(const Transformer& model, const GenerateOptions& options, const Transformer* draft) {
  const ModelConfig& config = model.config();
  require(config.has_decoder(), "generate: ", config.model_type, " is an encoder and generates nothing");
  require(options.max_tokens >= 0, "generate: max_tokens: expected at least 0, got ", options.max_tokens);
  require(options.beams.beams >= 1, "generate: beams: expected at least 1, got ", options.beams.beams);
  require(options.draft_tokens >= 1, "generate: draft_tokens: expected at least 1, got ", options.draft_tokens);
  check_sampling(options.sampling);
  check_rules(options.rules, config.vocabulary);
  for (const uint32_t token : options.end_tokens) {
    require(token < config.vocabulary, "generate: end token ", token, " is not in the vocabulary of ",
            config.vocabulary);
  }
  if (options.beams.beams > 1) {
    require(options.sampling.temperature == 0, "generate: beams and a temperature exclude each other");
    require(draft == nullptr, "generate: beams and a draft exclude each other");
  }
  if (draft != nullptr) {
    const ModelConfig& small = draft->config();
    require(small.kind == config.kind, "generate: the draft is of the kind ", name(small.kind),
            ", the model of the kind ", name(config.kind));
    require(small.vocabulary == config.vocabulary, "generate: the draft has a vocabulary of ", small.vocabulary,
            ", the model of ", config.vocabulary);
  }
}

void check_prompts(const Transformer& model, const std::vector<std::vector<uint32_t>>& prompts) {
  const ModelConfig& config = model.config();
  const int64_t most = TransformerSequences::most_tokens(model);
  for (size_t n = 0; n < prompts.size(); ++n) {
    const auto length = static_cast<int64_t>(prompts[n].size());
    require(length > 0, "generate: prompt ", n, " has no tokens");
    require(length <= most, "generate: prompt ", n, " has ", length, " tokens, the model has positions for ", most);
    for (const uint32_t token : prompts[n]) {
      require(token < config.vocabulary, "generate: prompt ", n, ": token ", token, " is not in the vocabulary of ",
              config.vocabulary);
    }
  }
}

/// Sequences whose encoder has read the prompts, or that have seen nothing.
TransformerSequences start(const Transformer& model, const std::vector<std::vector<uint32_t>>& prompts) {
  if (!model.config().has_encoder()) return {model, model.start(static_cast<int64_t>(prompts.size()))};
  std::vector<uint32_t> tokens;
  std::vector<int64_t> starts{0};
  for (const auto& prompt : prompts) {
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    starts.push_back(static_cast<int64_t>(tokens.size()));
  }
  return {model, model.start(TokenBatch{tokens, starts})};
}

/// Whether a model can read all of these.
bool has_room(const Transformer& model, const std::vector<std::vector<uint32_t>>& prompts) {
  const int64_t most = TransformerSequences::most_tokens(model);
  return std::all_of(prompts.begin(), prompts.end(),
                     [&](const auto& prompt) { return static_cast<int64_t>(prompt.size()) <= most; });
}

Finish finish_of(const std::vector<uint32_t>& tokens, const GenerateOptions& options) {
  const auto& ends = options.end_tokens;
  if (!tokens.empty() && std::find(ends.begin(), ends.end(), tokens.back()) != ends.end()) return Finish::end;
  return options.stops && options.stops(tokens) ? Finish::stop : Finish::length;
}

}  // namespace

std::string_view name(Finish finish) {
  switch (finish) {
    case Finish::length: return "length";
    case Finish::end: return "end";
    default: return "stop";
  }
}

int64_t TransformerSequences::most_tokens(const Transformer& model) {
  const ModelConfig& config = model.config();
  return config.learned_positions ? config.positions : std::numeric_limits<int64_t>::max();
}

Generation continue_with_beams(TokenSequences& sequences, const std::vector<uint32_t>& prompt,
                               const GenerateOptions& options) {
  const auto length = static_cast<int64_t>(prompt.size());
  require(length > 0, "generate: the prompt has no tokens");
  const int64_t most = most_tokens(length, options.max_tokens, sequences);
  if (most <= length) return {};
  read_prompts(sequences, {prompt}, {true}, options.on_prompt);
  const std::span<const uint32_t> rest = std::span(prompt).subspan(static_cast<size_t>(sequences.length(0)));
  const Tensor first = sequences.decode({rest}, LogitRows::last);
  sequences.reorder(std::vector<int64_t>(static_cast<size_t>(options.beams.beams), 0));
  std::vector<int64_t> starts;
  for (int64_t b = 0; b <= options.beams.beams; ++b) starts.push_back(b);
  const BeamStep step = [&](const std::vector<int64_t>& from, std::span<const uint32_t> tokens) {
    sequences.reorder(from);
    return sequences.decode({tokens, starts}, LogitRows::last);
  };
  const std::span<const float> row(static_cast<const float*>(first.view().data()),
                                   static_cast<size_t>(sequences.vocabulary()));
  const BeamProblem problem{prompt, most, options.end_tokens, options.rules, options.stops};
  BeamResult best = beam_search(problem, options.beams, row, step);
  const Finish finish = finish_of(best.tokens, options);
  return {std::move(best.tokens), finish};
}

std::vector<Generation> generate(const Transformer& model, const std::vector<std::vector<uint32_t>>& prompts,
                                 const GenerateOptions& options, const Transformer* draft) {
  check_options(model, options, draft);
  check_prompts(model, prompts);
  if (prompts.empty()) return {};
  std::vector<std::vector<uint32_t>> begun = prompts;
  if (model.config().has_encoder()) {
    require(options.decoder_start_token.has_value(), "generate: ", model.config().model_type,
            " needs a token that its decoder starts with");
    for (auto& prompt : begun) prompt = {*options.decoder_start_token};
  }
  if (options.beams.beams > 1) {
    std::vector<Generation> results;
    for (size_t n = 0; n < prompts.size(); ++n) {
      TransformerSequences sequences = start(model, {prompts[n]});
      results.push_back(continue_with_beams(sequences, begun[n], options));
    }
    return results;
  }
  // A prompt has the draws that it has alone; its copies have others.
  std::map<std::vector<uint32_t>, uint64_t> copies;
  std::vector<uint64_t> draws;
  for (const auto& prompt : prompts) draws.push_back(copies[prompt]++);
  TransformerSequences sequences = start(model, prompts);
  if (draft == nullptr || !has_room(*draft, prompts)) {
    return continue_prompts(sequences, nullptr, begun, draws, options);
  }
  TransformerSequences drafts = start(*draft, prompts);
  return continue_prompts(sequences, &drafts, begun, draws, options);
}

}  // namespace qkv
