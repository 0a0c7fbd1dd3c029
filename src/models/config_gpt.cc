// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "models/config_fields.h"
#include "qkv/support/error.h"

namespace qkv::models {

void parse_gpt2(const ConfigFields& fields, ModelConfig& config) {
  config.kind = ModelKind::decoder;
  config.width = fields.size("n_embd");
  StackConfig& stack = config.decoder;
  stack.heads = stack.kv_heads = fields.size("n_head");
  stack.head_width = head_width_of(fields, config.width, stack.heads);
  stack.feed_forward = fields.size_or("n_inner", 4 * config.width, 16 * kMostWidth);
  stack.layers = equal_layers(fields.size("n_layer", kMostLayers), stack.head_width);
  if (!fields.boolean_or("scale_attn_weights", true)) {
    for (LayerConfig& layer : stack.layers) layer.scale = 1;
  }
  if (fields.boolean_or("scale_attn_by_inverse_layer_idx", false)) {
    for (size_t n = 0; n < stack.layers.size(); ++n) stack.layers[n].scale /= static_cast<double>(n + 1);
  }
  config.activation = fields.activation_or("activation_function", "gelu_new");
  config.norm_epsilon = fields.positive_or("layer_norm_epsilon", 1e-5);
  config.learned_positions = true;
  config.positions = fields.size(fields.has("n_positions") ? "n_positions" : "n_ctx", kMostTokens);
  config.form = BlockForm::pre_norm;
  config.qkv_bias = config.output_bias = config.feed_forward_bias = true;
  config.tied_head = fields.boolean_or("tie_word_embeddings", true);
}

void parse_gpt_neox(const ConfigFields& fields, ModelConfig& config) {
  config.kind = ModelKind::decoder;
  config.width = fields.size("hidden_size");
  StackConfig& stack = config.decoder;
  stack.heads = stack.kv_heads = fields.size("num_attention_heads");
  stack.head_width = head_width_of(fields, config.width, stack.heads);
  stack.feed_forward = fields.size("intermediate_size", 16 * kMostWidth);
  stack.layers = equal_layers(fields.size("num_hidden_layers", kMostLayers), stack.head_width);
  config.activation = fields.activation_or("hidden_act", "gelu");
  config.norm_epsilon = fields.positive_or("layer_norm_eps", 1e-5);
  config.positions = fields.size_or("max_position_embeddings", 2048, kMostTokens);
  config.form = fields.boolean_or("use_parallel_residual", true) ? BlockForm::parallel : BlockForm::pre_norm;
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", true);
  config.feed_forward_bias = true;
  config.tied_head = fields.boolean_or("tie_word_embeddings", false);
  parse_rotary(fields, {}, 0.25, config);
}

}  // namespace qkv::models
