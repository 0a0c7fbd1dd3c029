// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "models/config_fields.h"
#include "qkv/support/error.h"

namespace qkv::models {
namespace {

/// feed_forward_proj: "ACTIVATION" or "gated-ACTIVATION"; "gated-gelu" is the tanh form. dense_act_fn and is_gated_act,
/// where they are there, say it again and win.
void parse_feed_forward(const ConfigFields& fields, ModelConfig& config) {
  constexpr std::string_view kGated = "gated-";
  std::string text = fields.string_or("feed_forward_proj", "relu");
  const bool gated = text.starts_with(kGated);
  if (gated) text.erase(0, kGated.size());
  if (gated && text == "gelu") text = "gelu_new";
  config.activation = parse_activation(text, fields.where() + ": feed_forward_proj");
  if (fields.has("dense_act_fn")) config.activation = fields.activation_or("dense_act_fn", "");
  config.gated = fields.boolean_or("is_gated_act", gated);
}

}  // namespace

void parse_t5(const ConfigFields& fields, ModelConfig& config) {
  fields.expect("is_encoder_decoder", true);
  config.kind = ModelKind::encoder_decoder;
  config.width = fields.size("d_model");
  StackConfig& stack = config.encoder;
  stack.heads = stack.kv_heads = fields.size("num_heads");
  stack.head_width = fields.size("d_kv");
  stack.feed_forward = fields.size("d_ff", 16 * kMostWidth);
  stack.layers.resize(static_cast<size_t>(fields.size("num_layers", kMostLayers)));  // scores are not scaled
  config.decoder = stack;
  config.decoder.layers.resize(
      static_cast<size_t>(fields.size_or("num_decoder_layers", fields.size("num_layers"), kMostLayers)));
  parse_feed_forward(fields, config);
  config.norm = NormKind::rms;
  config.norm_epsilon = fields.positive_or("layer_norm_epsilon", 1e-6);
  config.relative_buckets = fields.size_or("relative_attention_num_buckets", 32);
  config.relative_distance = fields.size_or("relative_attention_max_distance", 128);
  require(config.relative_buckets % 2 == 0 && config.relative_distance > config.relative_buckets / 2, fields.where(),
          ": relative_attention_num_buckets: expected an even number below twice relative_attention_max_distance, got ",
          config.relative_buckets, " and ", config.relative_distance);
  // Files of the first T5 say or imply a tied head and scale what enters it; those of version 1.1 say it is not tied.
  const bool tied = fields.boolean_or("tie_word_embeddings", true);
  config.tied_head = tied;
  if (fields.boolean_or("scale_decoder_outputs", tied))
    config.head_scale = 1 / std::sqrt(static_cast<double>(config.width));
}

void parse_bart(const ConfigFields& fields, ModelConfig& config) {
  fields.expect("is_encoder_decoder", true);
  fields.expect("normalize_before", false);
  fields.expect("add_final_layer_norm", false);
  fields.expect("add_bias_logits", false);
  fields.expect("normalize_embedding", true);
  fields.expect("static_position_embeddings", false);
  fields.integer_or("extra_pos_embeddings", 2, 2, 2);
  config.kind = ModelKind::encoder_decoder;
  config.width = fields.size("d_model");
  const auto read_stack = [&](StackConfig& stack, const std::string& prefix) {
    stack.heads = stack.kv_heads = fields.size((prefix + "_attention_heads").c_str());
    stack.head_width = head_width_of(fields, config.width, stack.heads);
    stack.feed_forward = fields.size((prefix + "_ffn_dim").c_str(), 16 * kMostWidth);
    stack.layers = equal_layers(fields.size((prefix + "_layers").c_str(), kMostLayers), stack.head_width);
  };
  read_stack(config.encoder, "encoder");
  read_stack(config.decoder, "decoder");
  config.activation = fields.activation_or("activation_function", "gelu");
  config.norm_epsilon = 1e-5;
  config.learned_positions = true;
  config.positions = fields.size("max_position_embeddings", kMostTokens);
  config.first_position = 2;
  if (fields.boolean_or("scale_embedding", false))
    config.embedding_scale = std::sqrt(static_cast<double>(config.width));
  config.embedding_norm = true;
  config.form = BlockForm::post_norm;
  config.final_norm = false;
  config.qkv_bias = config.output_bias = config.feed_forward_bias = true;
  config.tied_head = fields.boolean_or("tie_word_embeddings", true);
  config.head_bias = true;
}

}  // namespace qkv::models
