// SPDX-License-Identifier: Apache-2.0
// Every key that Transformers knows is in one of the lists below: read, refused unless it says what holds without it,
// or of no effect on which tokens come.
#include "qkv/generate/generation_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "models/config_fields.h"
#include "models/json_file.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

using models::ConfigFields;
using models::Json;
using models::shown;

/// Read by read_tokens, read_rules and read_beams.
constexpr const char* kRead[] = {
    "eos_token_id",   "bos_token_id",        "decoder_start_token_id", "min_p",           "stop_strings",
    "sequence_bias",  "repetition_penalty",  "no_repeat_ngram_size",   "bad_words_ids",   "min_length",
    "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id",    "suppress_tokens", "begin_suppress_tokens",
    "num_beams",      "length_penalty",      "early_stopping"};

/// Left to the caller: docs/generation.md.
constexpr const char* kCallers[] = {"do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens"};

/// How tokens are computed or what is returned beside them; padding; drafts, which never change the result.
constexpr const char* kWithoutEffect[] = {"use_cache",
                                          "cache_implementation",
                                          "cache_config",
                                          "max_cache_len",
                                          "return_legacy_cache",
                                          "prefill_chunk_size",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_scores",
                                          "output_logits",
                                          "return_dict_in_generate",
                                          "pad_token_id",
                                          "is_assistant",
                                          "num_assistant_tokens",
                                          "num_assistant_tokens_schedule",
                                          "assistant_confidence_threshold",
                                          "prompt_lookup_num_tokens",
                                          "max_matching_ngram_size",
                                          "assistant_early_exit",
                                          "assistant_lookbehind",
                                          "target_lookbehind",
                                          "use_mtp",
                                          "compile_config",
                                          "disable_compile",
                                          "continuous_batching_config",
                                          "low_memory",
                                          "transformers_version",
                                          "_from_model_config",
                                          "_commit_hash"};

/// A value that is not supported, and what it must be to change nothing.
struct Neutral {
  const char* key;
  Json value;
};

const std::vector<Neutral>& refused() {
  static const std::vector<Neutral> list{{"max_time", nullptr},
                                         {"num_return_sequences", 1},
                                         {"guidance_scale", 1},
                                         {"penalty_alpha", 0},
                                         {"dola_layers", nullptr},
                                         {"diversity_penalty", 0},
                                         {"num_beam_groups", 1},
                                         {"constraints", nullptr},
                                         {"force_words_ids", nullptr},
                                         {"token_healing", false},
                                         {"encoder_repetition_penalty", 1},
                                         {"encoder_no_repeat_ngram_size", 0},
                                         {"exponential_decay_length_penalty", nullptr},
                                         {"remove_invalid_values", false},
                                         {"watermarking_config", nullptr},
                                         {"assistant_ensemble_weight", nullptr},
                                         {"speculation_type", nullptr},
                                         {"custom_generate", nullptr}};
  return list;
}

const std::vector<Neutral>& refused_when_sampling() {
  static const std::vector<Neutral> list{
      {"typical_p", 1}, {"epsilon_cutoff", 0}, {"eta_cutoff", 0}, {"top_h", nullptr}};
  return list;
}

const std::vector<Neutral>& refused_with_beams() {
  static const std::vector<Neutral> list{{"renormalize_logits", false}};
  return list;
}

/// Whether a value is there and is not what its absence would be.
bool differs(const ConfigFields& fields, const Neutral& neutral) {
  const Json* value = fields.find(neutral.key);
  return value != nullptr && *value != neutral.value && !(value->is_array() && value->empty());
}

std::vector<std::string> differing(const ConfigFields& fields, const std::vector<Neutral>& list) {
  std::vector<std::string> found;
  for (const Neutral& neutral : list) {
    if (differs(fields, neutral)) found.push_back(concat(neutral.key, " ", shown(*fields.find(neutral.key))));
  }
  return found;
}

std::vector<uint32_t> narrowed(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

std::optional<uint32_t> optional_token(const ConfigFields& fields, const char* key, int64_t vocabulary) {
  const Json* value = fields.find(key);
  if (value == nullptr) return {};
  if (value->is_array()) fields.refuse(key, "one token id");
  return static_cast<uint32_t>(fields.tokens(key, vocabulary).front());
}

/// A list of token ids, and nothing else.
std::vector<uint32_t> token_list(const Json& value, const ConfigFields& fields, const char* key, int64_t vocabulary) {
  std::vector<uint32_t> ids;
  const auto expected = [&] { return concat("lists of token ids below ", vocabulary); };
  if (!value.is_array() || value.empty()) fields.refuse(key, expected());
  for (const Json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocabulary)) {
      fields.refuse(key, expected());
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

std::vector<SequenceBias> read_sequence_bias(const ConfigFields& fields, int64_t vocabulary) {
  constexpr const char* key = "sequence_bias";
  std::vector<SequenceBias> biases;
  const Json* value = fields.find(key);
  if (value == nullptr) return biases;
  const char* expected = "a list of [[token ids], number]";
  if (!value->is_array()) fields.refuse(key, expected);
  for (const Json& entry : *value) {
    if (!entry.is_array() || entry.size() != 2 || !entry[1].is_number()) fields.refuse(key, expected);
    biases.push_back({token_list(entry[0], fields, key, vocabulary), entry[1].get<float>()});
  }
  return biases;
}

LogitRules read_rules(const ConfigFields& fields, int64_t vocabulary) {
  constexpr int64_t kMost = int64_t{1} << 31;
  LogitRules rules;
  rules.sequence_bias = read_sequence_bias(fields, vocabulary);
  rules.repetition_penalty = fields.positive_or("repetition_penalty", 1);
  rules.no_repeat_ngram_size = fields.integer_or("no_repeat_ngram_size", 0, 0, kMost);
  rules.min_length = fields.integer_or("min_length", 0, 0, kMost);
  rules.min_new_tokens = fields.integer_or("min_new_tokens", 0, 0, kMost);
  if (fields.has("min_new_tokens")) rules.min_length = 0;  // it takes the other's place
  if (const Json* words = fields.find("bad_words_ids")) {
    if (!words->is_array()) fields.refuse("bad_words_ids", "a list of lists of token ids");
    for (const Json& word : *words) rules.bad_words.push_back(token_list(word, fields, "bad_words_ids", vocabulary));
  }
  rules.forced_first = optional_token(fields, "forced_bos_token_id", vocabulary);
  rules.forced_last = narrowed(fields.tokens("forced_eos_token_id", vocabulary));
  rules.suppressed = narrowed(fields.tokens("suppress_tokens", vocabulary));
  rules.suppressed_first = narrowed(fields.tokens("begin_suppress_tokens", vocabulary));
  return rules;
}

BeamOptions read_beams(const ConfigFields& fields) {
  BeamOptions beams;
  beams.beams = fields.integer_or("num_beams", 1, 1, 1 << 16);
  beams.length_penalty = fields.number_or("length_penalty", 1);
  if (const Json* early = fields.find("early_stopping")) {
    if (*early == "never") {
      beams.early_stopping = EarlyStopping::never;
    } else if (early->is_boolean()) {
      beams.early_stopping = early->get<bool>() ? EarlyStopping::full : EarlyStopping::heuristic;
    } else {
      fields.refuse("early_stopping", "true, false or \"never\"");
    }
  }
  return beams;
}

void read_tokens(const ConfigFields& fields, int64_t vocabulary, GenerationConfig& config) {
  config.end_tokens = narrowed(fields.known_tokens("eos_token_id", vocabulary));
  config.begin_token = optional_token(fields, "bos_token_id", models::kMostTokens);
  if (config.begin_token && *config.begin_token >= vocabulary) config.begin_token.reset();
  config.decoder_start_token = optional_token(fields, "decoder_start_token_id", vocabulary);
  if (!config.decoder_start_token) config.decoder_start_token = config.begin_token;
}

GenerationConfig read(const ConfigFields& fields, const ModelConfig& model) {
  for (const Neutral& neutral : refused()) {
    if (differs(fields, neutral)) {
      fields.refuse(neutral.key,
                    neutral.value.is_null() ? "nothing" : concat(shown(neutral.value), ", the only value supported"));
    }
  }
  GenerationConfig config;
  config.name = fields.where();
  read_tokens(fields, model.vocabulary, config);
  config.rules = read_rules(fields, model.vocabulary);
  config.beams = read_beams(fields);
  if (fields.has("min_p")) {
    config.min_p = fields.number("min_p");
    if (!(*config.min_p >= 0 && *config.min_p <= 1)) fields.refuse("min_p", "a number from 0 to 1");
  }
  const Json* stops = fields.find("stop_strings");
  config.stops = stops != nullptr && stops->is_string() ? std::vector<std::string>{stops->get<std::string>()}
                                                        : fields.strings("stop_strings");
  config.unsupported_sampling = differing(fields, refused_when_sampling());
  config.unsupported_beams = differing(fields, refused_with_beams());
  return config;
}

void check_known(const Json& root, const std::string& name) {
  const auto in = [](const std::string& key, const auto& list) {
    return std::any_of(std::begin(list), std::end(list), [&](const char* known) { return key == known; });
  };
  const auto among = [](const std::string& key, const std::vector<Neutral>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Neutral& known) { return key == known.key; });
  };
  for (const auto& [key, value] : root.items()) {
    const bool known = in(key, kRead) || in(key, kCallers) || in(key, kWithoutEffect) || among(key, refused()) ||
                       among(key, refused_when_sampling()) || among(key, refused_with_beams());
    require(known || value.is_null(), name, ": ", key, " is not a known key, and could change the result");
  }
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view json, const std::string& name, const ModelConfig& model) {
  const Json root = models::parse_json(json, name);
  const ConfigFields fields(root, name);
  check_known(root, name);
  return read(fields, model);
}

GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model) {
  const auto path = [&](const char* file) { return (std::filesystem::path(folder) / file).string(); };
  const std::string own = path("generation_config.json");
  if (std::filesystem::exists(own)) return parse_generation_config(models::read_text(own), own, model);
  // The keys of a config.json that are not about generation are the model's.
  const Json root = models::read_json(path("config.json"));
  return read(ConfigFields(root, path("config.json")), model);
}

}  // namespace qkv
