// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/generate_request.h"

#include <gtest/gtest.h>

#include "qkv/support/error.h"

namespace qkv {
namespace {

using Tokens = std::vector<uint32_t>;

GenerationConfig parse(const std::string& json) {
  ModelConfig model;
  model.vocabulary = 100;
  return parse_generation_config(json, "g.json", model);
}

std::string message(const std::string& json) {
  try {
    parse(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GenerationConfig, NothingSaidChangesNothing) {
  const GenerationConfig config = parse("{}");
  EXPECT_TRUE(config.end_tokens.empty());
  std::vector<float> logits{1, -1, 2, -2};
  apply_rules(config.rules, {std::vector<uint32_t>{0, 1, 2}, 1, 100}, {}, logits);
  EXPECT_EQ(logits, (std::vector<float>{1, -1, 2, -2}));
  EXPECT_EQ(config.beams.beams, 1);
  EXPECT_FALSE(config.min_p || config.begin_token || config.decoder_start_token);
  EXPECT_TRUE(parse(R"({"eos_token_id": null, "top_h": null, "future": null})").end_tokens.empty());
}

TEST(GenerationConfig, EndTokensAreOneOrAList) {
  EXPECT_EQ(parse(R"({"eos_token_id": 2})").end_tokens, Tokens{2});
  EXPECT_EQ(parse(R"({"eos_token_id": [2, 99]})").end_tokens, (Tokens{2, 99}));
  EXPECT_EQ(parse(R"({"eos_token_id": [2, 100]})").end_tokens, Tokens{2});
  EXPECT_FALSE(parse(R"({"bos_token_id": 100})").begin_token);
  EXPECT_NE(message(R"({"eos_token_id": "2"})"), "");
  EXPECT_NE(message(R"({"eos_token_id": -1})"), "");
}

TEST(GenerationConfig, RulesAreRead) {
  const GenerationConfig config = parse(R"({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3,
      "bad_words_ids": [[1], [2, 3]], "sequence_bias": [[[4, 5], -1.5]], "min_length": 7, "forced_bos_token_id": 0,
      "forced_eos_token_id": [2, 3], "suppress_tokens": [8], "begin_suppress_tokens": [9], "stop_strings": "END",
      "decoder_start_token_id": 11, "bos_token_id": 12, "min_p": 0.1})");
  EXPECT_EQ(config.rules.repetition_penalty, 1.2);
  EXPECT_EQ(config.rules.no_repeat_ngram_size, 3);
  EXPECT_EQ(config.rules.bad_words, (std::vector<Tokens>{{1}, {2, 3}}));
  ASSERT_EQ(config.rules.sequence_bias.size(), 1u);
  EXPECT_EQ(config.rules.sequence_bias[0].tokens, (Tokens{4, 5}));
  EXPECT_EQ(config.rules.sequence_bias[0].bias, -1.5f);
  EXPECT_EQ(config.rules.min_length, 7);
  EXPECT_EQ(config.rules.forced_first, 0u);
  EXPECT_EQ(config.rules.forced_last, (Tokens{2, 3}));
  EXPECT_EQ(config.rules.suppressed, Tokens{8});
  EXPECT_EQ(config.rules.suppressed_first, Tokens{9});
  EXPECT_EQ(config.stops, std::vector<std::string>{"END"});
  EXPECT_EQ(config.decoder_start_token, 11u);
  EXPECT_EQ(config.begin_token, 12u);
  EXPECT_EQ(config.min_p, 0.1);
}

TEST(GenerationConfig, LeastNewTokensTakeThePlaceOfTheLeastLength) {
  const LogitRules rules = parse(R"({"min_length": 7, "min_new_tokens": 3})").rules;
  EXPECT_EQ(rules.min_length, 0);
  EXPECT_EQ(rules.min_new_tokens, 3);
}

TEST(GenerationConfig, TheFirstTokenBeginsDecodersThatNameNoStart) {
  EXPECT_EQ(parse(R"({"bos_token_id": 5})").decoder_start_token, 5u);
}

TEST(GenerationConfig, BeamsAreRead) {
  const BeamOptions beams = parse(R"({"num_beams": 4, "length_penalty": 2.0, "early_stopping": true})").beams;
  EXPECT_EQ(beams.beams, 4);
  EXPECT_EQ(beams.length_penalty, 2);
  EXPECT_EQ(beams.early_stopping, EarlyStopping::full);
  EXPECT_EQ(parse(R"({"early_stopping": "never"})").beams.early_stopping, EarlyStopping::never);
  EXPECT_EQ(parse(R"({"early_stopping": false})").beams.early_stopping, EarlyStopping::heuristic);
  EXPECT_NE(message(R"({"early_stopping": "soon"})"), "");
}

TEST(GenerationConfig, TheCallersValuesAndThoseWithoutEffectPass) {
  EXPECT_EQ(message(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.8, "max_length": 32768,
      "pad_token_id": 0, "transformers_version": "4.40.0", "_from_model_config": true, "cache_implementation": "hybrid",
      "use_cache": false})"),
            "");
}

TEST(GenerationConfig, WhatWouldChangeTheResultIsRefusedByName) {
  EXPECT_EQ(message(R"({"guidance_scale": 1.5})"),
            "g.json: guidance_scale: expected 1, the only value supported, got 1.5");
  EXPECT_EQ(message(R"({"exponential_decay_length_penalty": [5, 1.1]})"),
            "g.json: exponential_decay_length_penalty: expected nothing, got [5,1.1]");
  for (const char* entry :
       {R"("num_beam_groups": 2)", R"("diversity_penalty": 0.5)", R"("num_return_sequences": 2)",
        R"("encoder_no_repeat_ngram_size": 3)", R"("encoder_repetition_penalty": 1.1)", R"("penalty_alpha": 0.6)",
        R"("dola_layers": "high")", R"("force_words_ids": [[1]])", R"("token_healing": true)", R"("max_time": 5.0)",
        R"("watermarking_config": {})", R"("remove_invalid_values": true)"}) {
    EXPECT_NE(message(std::string("{") + entry + "}").find("expected"), std::string::npos) << entry;
  }
  EXPECT_EQ(message(R"({"guidance_scale": 1.0, "num_beam_groups": 1, "diversity_penalty": 0.0, "force_words_ids": [],
      "encoder_repetition_penalty": 1.0, "remove_invalid_values": false})"),
            "");
}

TEST(GenerationConfig, WhatMattersOnlyWhenSamplingOrWithBeamsIsKeptForThat) {
  const GenerationConfig config = parse(R"({"typical_p": 0.9, "eta_cutoff": 0.0, "renormalize_logits": true})");
  EXPECT_EQ(config.unsupported_sampling, std::vector<std::string>{"typical_p 0.9"});
  EXPECT_EQ(config.unsupported_beams, std::vector<std::string>{"renormalize_logits true"});
  EXPECT_TRUE(parse(R"({"typical_p": 1.0, "renormalize_logits": false})").unsupported_sampling.empty());
}

TEST(GenerateRequest, TakesFromTheFolderWhatItLeavesOpen) {
  const GenerationConfig config = parse(R"({"repetition_penalty": 2.0, "min_p": 0.25, "length_penalty": 3.0,
    "eos_token_id": 4, "suppress_tokens": [7]})");
  GenerateOptions options = options_of({.max_tokens = 9}, config);
  EXPECT_EQ(options.max_tokens, 9);
  EXPECT_EQ(options.rules.repetition_penalty, 2);
  EXPECT_EQ(options.rules.suppressed, (std::vector<uint32_t>{7}));
  EXPECT_EQ(options.end_tokens, (std::vector<uint32_t>{4}));
  EXPECT_EQ(options.beams.beams, 1);
  EXPECT_EQ(options.sampling.min_p, 0);
  const SamplingOptions draws{.temperature = 0.5, .top_k = 3};
  options = options_of({.sampling = draws}, config);
  EXPECT_EQ(options.sampling.top_k, 3);
  EXPECT_EQ(options.sampling.min_p, 0.25);
  options = options_of({.sampling = draws, .min_p = 0.0, .repetition_penalty = 1.0}, config);
  EXPECT_EQ(options.sampling.min_p, 0);
  EXPECT_TRUE(options.rules.repetition_penalty == 1 && options.rules.suppressed.size() == 1);
  options = options_of({.beams = 2}, config);
  EXPECT_EQ(options.beams.beams, 2);
  EXPECT_EQ(options.beams.length_penalty, 3);
}

TEST(GenerateRequest, BeamsOfTheFolderAreNotDrawn) {
  const GenerationConfig config = parse(R"({"num_beams": 3})");
  EXPECT_EQ(options_of({}, config).beams.beams, 3);
  const auto message = [&](const GenerateRequest& request) {
    try {
      options_of(request, config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const GenerateRequest drawn{.sampling = {.temperature = 1}}, drafted{.has_draft = true};
  EXPECT_NE(message(drawn).find("num_beams 3 and a temperature exclude each other; asking for 1"), std::string::npos);
  EXPECT_NE(message(drafted).find("num_beams 3 and a draft exclude each other"), std::string::npos);
  EXPECT_EQ(message({.sampling = {.temperature = 1}, .beams = 1}), "");
}

TEST(GenerationConfig, AnUnknownKeyIsRefused) {
  EXPECT_EQ(message(R"({"novel_penalty": 2})"),
            "g.json: novel_penalty is not a known key, and could change the result");
}

TEST(GenerationConfig, MalformedFilesAreRefused) {
  for (const char* json : {"",
                           "{",
                           "[]",
                           "3",
                           R"({"eos_token_id": 1, "eos_token_id": 2})",
                           R"({"repetition_penalty": 0})",
                           R"({"repetition_penalty": "1"})",
                           R"({"no_repeat_ngram_size": -1})",
                           R"({"no_repeat_ngram_size": 1.5})",
                           R"({"bad_words_ids": [1]})",
                           R"({"bad_words_ids": [[]]})",
                           R"({"bad_words_ids": [[100]]})",
                           R"({"bad_words_ids": 3})",
                           R"({"sequence_bias": [[1, 2]]})",
                           R"({"sequence_bias": [[[1], "x"]]})",
                           R"({"sequence_bias": {}})",
                           R"({"num_beams": 0})",
                           R"({"num_beams": 1e9})",
                           R"({"min_p": 2})",
                           R"({"forced_bos_token_id": [1]})",
                           R"({"suppress_tokens": [-1]})",
                           R"({"stop_strings": [1]})",
                           R"({"bos_token_id": 1.5})",
                           R"({"length_penalty": null, "num_beams": true})"}) {
    EXPECT_NE(message(json), "") << json;
  }
}

}  // namespace
}  // namespace qkv
