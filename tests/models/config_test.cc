// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "qkv/support/error.h"
#include "tiny_models.h"

namespace qkv::test {
namespace {

using Json = nlohmann::json;

std::string error_of(const Json& json) {
  try {
    parse_model_config(json.dump(), "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// A change of a tiny config that must be refused, and words of the message.
struct Wrong {
  const char* name;
  const char* model;
  const char* patch;  ///< merged into the config; null removes a key
  const char* message;
};

class WrongConfig : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongConfig, IsRefusedByName) {
  Json json = Json::parse(tiny_model(GetParam().model).json);
  json.merge_patch(Json::parse(GetParam().patch));
  const std::string message = error_of(json);
  EXPECT_EQ(message.rfind("config.json: ", 0), 0U) << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

const Wrong kWrong[] = {
    {"unknown_type", "bert", R"({"model_type": "falcon"})", "model_type \"falcon\" is not supported"},
    {"no_type", "bert", R"({"model_type": null})", "model_type: expected a string, got nothing"},
    {"activation", "bert", R"({"hidden_act": "mish"})", "hidden_act: activation \"mish\" is not supported"},
    {"quick_gelu", "gpt2", R"({"activation_function": "quick_gelu"})", "activation \"quick_gelu\""},
    {"relative_key", "bert", R"({"position_embedding_type": "relative_key"})", "position_embedding_type"},
    {"bert_decoder", "bert", R"({"is_decoder": true})", "is_decoder"},
    {"gpt2_cross", "gpt2", R"({"add_cross_attention": true})", "add_cross_attention"},
    {"quantized", "llama", R"({"quantization_config": {"bits": 4}})", "quantization_config"},
    {"no_width", "llama", R"({"hidden_size": null})", "hidden_size: expected an integer from 1"},
    {"negative_width", "llama", R"({"hidden_size": -32})", "hidden_size: expected an integer from 1"},
    {"zero_layers", "llama", R"({"num_hidden_layers": 0})", "num_hidden_layers: expected an integer from 1"},
    {"fractional_heads", "llama", R"({"num_attention_heads": 4.5})", "num_attention_heads: expected an integer"},
    {"huge_width", "llama", R"({"hidden_size": 1e30})", "hidden_size: expected an integer from 1 to 1048576"},
    {"huge_vocabulary", "gpt2", R"({"vocab_size": 9223372036854775807})", "vocab_size: expected an integer"},
    {"huge_layers", "gpt2", R"({"n_layer": 1000000})", "n_layer: expected an integer from 1 to 10000"},
    {"huge_heads", "qwen3", R"({"num_attention_heads": 1048576, "head_dim": 1048576})", "wide"},
    {"odd_heads", "bert", R"({"num_attention_heads": 5})", "24 does not divide into 5 heads"},
    {"odd_groups", "llama", R"({"num_key_value_heads": 3})", "num_key_value_heads: 3 does not divide 4 heads"},
    {"dynamic", "llama", R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})",
     "rope_type: \"dynamic\" is not supported: its frequencies change with the length"},
    {"longrope", "llama", R"({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}})", "\"longrope\""},
    {"old_spelling", "llama", R"({"rope_scaling": {"rope_type": null, "type": "su"}})", "type: \"su\""},
    {"unknown_rope", "llama", R"({"rope_scaling": {"rope_type": "spiral"}})", "rope_type: \"spiral\""},
    {"no_factor", "llama", R"({"rope_scaling": {"factor": null}})", "factor: expected a number, got nothing"},
    {"zero_factor", "llama", R"({"rope_scaling": {"factor": 0}})", "factor: expected a positive number"},
    {"bad_band", "llama", R"({"rope_scaling": {"high_freq_factor": 0.5}})", "high_freq_factor"},
    {"huge_factor", "llama", R"({"rope_scaling": {"factor": 1e308}})", "factor: expected a positive number from"},
    {"huge_yarn_factor", "llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 1e308}})", "factor: expected"},
    {"tiny_factor", "llama", R"({"rope_scaling": {"rope_type": "linear", "factor": 1e-308}})", "factor: expected"},
    {"huge_length", "llama", R"({"rope_scaling": {"original_max_position_embeddings": 1e300}})",
     "original_max_position_embeddings: expected"},
    {"huge_beta", "llama", R"({"rope_scaling": {"rope_type": "yarn", "beta_fast": 1e308}})", "beta_fast: expected"},
    {"tiny_beta", "llama", R"({"rope_scaling": {"rope_type": "yarn", "beta_slow": 1e-308}})", "beta_slow: expected"},
    {"huge_band", "llama", R"({"rope_scaling": {"high_freq_factor": 1e308}})", "high_freq_factor: expected"},
    {"huge_amplitude", "llama", R"({"rope_scaling": {"rope_type": "yarn", "attention_factor": 1e39}})",
     "attention_factor: expected"},
    {"infinite_mscale", "llama", R"({"rope_scaling": {"rope_type": "yarn", "mscale": 1e308, "mscale_all_dim": 1}})",
     "amplitude of"},
    {"no_mscale", "llama",
     R"({"rope_scaling": {"rope_type": "yarn", "factor": 2e9, "mscale": 1e308, "mscale_all_dim": 1e308}})",
     "amplitude of"},
    {"tiny_theta", "llama", R"({"rope_scaling": null, "rope_theta": 5e-324})", "frequency"},
    {"zero_theta", "llama", R"({"rope_theta": 0})", "rope_theta: expected a positive number"},
    {"partial_llama", "llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor"},
    {"odd_rotary", "gpt_neox", R"({"rotary_pct": 0.2})", "expected an even number"},
    {"no_nested", "gemma2", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
     "expected settings for sliding_attention"},
    {"layer_types_count", "gemma2", R"({"layer_types": ["full_attention"]})", "layer_types: expected 3 entries"},
    {"layer_types_word", "qwen3", R"({"layer_types": ["full_attention", "chunked_attention"]})", "chunked_attention"},
    {"mistral_types", "mistral", R"({"layer_types": ["full_attention", "full_attention"]})", "layer_types: layer 0"},
    {"qwen_types_alone", "qwen3", R"({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4})",
     "layer 1 is sliding_attention, but use_sliding_window is not true"},
    {"bidirectional", "gemma2", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention"},
    {"llama_both_ways", "llama", R"({"is_causal": false})", "is_causal: expected true"},
    {"t5_both_ways", "t5", R"({"is_causal": false})", "is_causal: expected true"},
    {"unequal_layers", "llama", R"({"per_layer_config": {"0": {"num_attention_heads": 2}}})", "per_layer_config"},
    {"neox_bases", "gpt_neox", R"({"rotary_emb_base": 500, "rope_theta": 50})",
     "rope_theta: expected 500 as rotary_emb_base, got 50"},
    {"neox_parts", "gpt_neox", R"({"partial_rotary_factor": 0.5})",
     "partial_rotary_factor: expected 0.25 as rotary_pct, got 0.5"},
    {"t5_act_fn", "t5", R"({"dense_act_fn": "mish"})", "dense_act_fn: activation \"mish\""},
    {"negative_cap", "gemma2", R"({"attn_logit_softcapping": -1})", "attn_logit_softcapping: expected a positive"},
    {"mistral_bias", "mistral", R"({"attention_bias": true})", "attention_bias"},
    {"zero_epsilon", "gpt2", R"({"layer_norm_epsilon": 0})", "layer_norm_epsilon: expected a positive number"},
    {"t5_projection", "t5", R"({"feed_forward_proj": "gated-mish"})", "feed_forward_proj: activation \"mish\""},
    {"t5_buckets", "t5", R"({"relative_attention_num_buckets": 7})", "relative_attention_num_buckets"},
    {"bart_pre_norm", "bart", R"({"normalize_before": true})", "normalize_before"},
    {"roberta_table", "roberta", R"({"max_position_embeddings": 2})", "max_position_embeddings"},
    {"pad_outside", "roberta", R"({"pad_token_id": 61})", "pad_token_id: expected a token id below 61"},
};

INSTANTIATE_TEST_SUITE_P(All, WrongConfig, ::testing::ValuesIn(kWrong),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ModelConfig, RefusesWhatIsNotAnObject) {
  EXPECT_NE(error_of(Json::array()).find("expected an object"), std::string::npos);
  EXPECT_THROW(parse_model_config("{\"model_type\": ", "c"), Error);
  EXPECT_THROW(parse_model_config(R"({"model_type": "gpt2", "model_type": "bert"})", "c"), Error);
  EXPECT_THROW(parse_model_config(std::string(100000, '['), "c"), Error);
}

TEST(ModelConfig, MissingFileIsTheMachinesFault) { EXPECT_THROW(read_model_config("no/config.json"), SystemError); }

/// A small GPT-2 keeps the ids of the published one's 50,257 tokens: nothing depends on them.
TEST(ModelConfig, SpecialTokensBeyondTheVocabularyNeverCome) {
  Json json = Json::parse(tiny_model("gpt2").json);
  json["bos_token_id"] = json["pad_token_id"] = 50256;
  json["eos_token_id"] = {50256, 3};
  const ModelConfig config = parse_model_config(json.dump(), "c");
  EXPECT_EQ(config.vocabulary, parse_model_config(tiny_model("gpt2").json, "c").vocabulary);
}

/// The same settings as published files and Transformers 5 spell them.
TEST(ModelConfig, BothSpellingsOfRotarySettings) {
  const ModelConfig old = tiny_model("llama").config();
  Json json = Json::parse(tiny_model("llama").json);
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = json["rope_theta"];
  json.erase("rope_scaling");
  json.erase("rope_theta");
  const ModelConfig now = parse_model_config(json.dump(), "c");
  ASSERT_EQ(now.rotary.size(), 1U);
  EXPECT_EQ(rotary_frequencies(now.rotary[0]), rotary_frequencies(old.rotary[0]));
  EXPECT_EQ(now.rotary[0].scaling.kind, RotaryScaling::Kind::llama3);
}

TEST(ModelConfig, NestedRotarySettingsGoByLayerType) {
  Json json = Json::parse(tiny_model("gemma2").json);
  json["rope_parameters"] = {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 100.0}}},
                             {"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 900.0}}}};
  const ModelConfig config = parse_model_config(json.dump(), "c");
  ASSERT_EQ(config.rotary.size(), 2U);
  EXPECT_EQ(config.rotary[static_cast<size_t>(config.decoder.layers[0].rotary)].base, 100);
  EXPECT_EQ(config.rotary[static_cast<size_t>(config.decoder.layers[1].rotary)].scaling.factor, 2);
  EXPECT_EQ(config.decoder.layers[2].rotary, config.decoder.layers[0].rotary);
}

/// A length beside the rotary settings wins over the one inside, as in Transformers, but not over one of a layer's
/// type.
TEST(ModelConfig, OriginalLengthOfRotarySettings) {
  Json json = Json::parse(tiny_model("llama").json);
  EXPECT_EQ(parse_model_config(json.dump(), "c").rotary[0].scaling.original_length, 16);
  json["original_max_position_embeddings"] = 64;
  EXPECT_EQ(parse_model_config(json.dump(), "c").rotary[0].scaling.original_length, 64);
  Json gemma = Json::parse(tiny_model("gemma2").json);
  gemma["original_max_position_embeddings"] = 64;
  gemma["rope_parameters"]["sliding_attention"] = gemma["rope_parameters"]["full_attention"] = json["rope_scaling"];
  EXPECT_EQ(parse_model_config(gemma.dump(), "c").rotary[0].scaling.original_length, 16);
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  json["rope_scaling"] = Json::object();  // says nothing
  EXPECT_EQ(parse_model_config(json.dump(), "c").rotary[0].scaling.factor, 3);
}

TEST(ModelConfig, WhatFamiliesLeaveOut) {
  const auto parsed = [](const char* model, const char* patch) {
    Json json = Json::parse(tiny_model(model).json);
    json.update(Json::parse(patch));
    if (json["num_key_value_heads"] == "absent") json.erase("num_key_value_heads");
    return parse_model_config(json.dump(), "c");
  };
  EXPECT_EQ(parsed("llama", R"({"num_key_value_heads": "absent"})").decoder.kv_heads, 4);
  EXPECT_EQ(parsed("gemma2", R"({"num_key_value_heads": "absent"})").decoder.kv_heads, 4);
  EXPECT_EQ(parsed("mistral", R"({"num_key_value_heads": null})").decoder.kv_heads, 4);
  const ModelConfig mistral =
      parsed("mistral", R"({"num_key_value_heads": "absent", "num_attention_heads": 16, "hidden_size": 64})");
  EXPECT_EQ(mistral.decoder.kv_heads, 8);
  EXPECT_EQ(mistral.positions, 131072);
  EXPECT_EQ(tiny_model("llama").config().positions, 2048);
}

/// dense_act_fn and is_gated_act repeat feed_forward_proj in files of Transformers, which reads them last.
TEST(ModelConfig, FeedForwardOfT5) {
  Json json = Json::parse(tiny_model("t5_gated").json);
  EXPECT_TRUE(parse_model_config(json.dump(), "c").gated);
  EXPECT_EQ(parse_model_config(json.dump(), "c").activation, Activation::gelu_tanh);
  json["dense_act_fn"] = "silu";
  json["is_gated_act"] = false;
  EXPECT_FALSE(parse_model_config(json.dump(), "c").gated);
  EXPECT_EQ(parse_model_config(json.dump(), "c").activation, Activation::silu);
}

TEST(ModelConfig, WindowsOfLayers) {
  const auto windows = [](const ModelConfig& config) {
    std::vector<int64_t> all;
    for (const LayerConfig& layer : config.decoder.layers) all.push_back(layer.window.value_or(0));
    return all;
  };
  EXPECT_EQ(windows(tiny_model("mistral").config()), (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(windows(tiny_model("qwen2").config()), (std::vector<int64_t>{0, 5, 5}));
  EXPECT_EQ(windows(tiny_model("gemma2").config()), (std::vector<int64_t>{6, 0, 6}));
  Json mistral = Json::parse(tiny_model("mistral").json);
  mistral["sliding_window"] = nullptr;  // none; an absent key is the family's 4096
  EXPECT_EQ(windows(parse_model_config(mistral.dump(), "c")), (std::vector<int64_t>{0, 0}));
  mistral.erase("sliding_window");
  EXPECT_EQ(windows(parse_model_config(mistral.dump(), "c")), (std::vector<int64_t>{4096, 4096}));
  Json qwen = Json::parse(tiny_model("qwen2").json);
  qwen["sliding_window"] = nullptr;
  EXPECT_EQ(windows(parse_model_config(qwen.dump(), "c")), (std::vector<int64_t>{0, 0, 0}));
}

TEST(ModelConfig, ASlidingLayerNeedsAWindow) {
  Json gemma = Json::parse(tiny_model("gemma2").json);
  gemma["sliding_window"] = nullptr;
  EXPECT_NE(error_of(gemma).find("layer 0 is sliding_attention, but sliding_window is null"), std::string::npos);
  gemma["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(error_of(gemma), "no error");
}

TEST(ModelConfig, ScalesOfFamilies) {
  EXPECT_DOUBLE_EQ(tiny_model("gpt2").config().decoder.layers[1].scale, 1 / std::sqrt(8.0) / 2);
  EXPECT_DOUBLE_EQ(tiny_model("gemma2").config().decoder.layers[0].scale, 1 / std::sqrt(10.0));
  EXPECT_EQ(tiny_model("t5").config().decoder.layers[0].scale, 1);
  EXPECT_DOUBLE_EQ(tiny_model("t5").config().head_scale, 1 / std::sqrt(24.0));
  EXPECT_EQ(tiny_model("t5_gated").config().head_scale, 1);
  EXPECT_DOUBLE_EQ(tiny_model("bart").config().embedding_scale, std::sqrt(24.0));
}

}  // namespace
}  // namespace qkv::test
