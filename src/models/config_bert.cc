// SPDX-License-Identifier: Apache-2.0
#include "models/config_fields.h"
#include "qkv/support/error.h"

namespace qkv::models {
namespace {

/// The keys under which DistilBERT says what BERT says.
struct Keys {
  const char *width, *layers, *heads, *feed_forward, *activation;
};
constexpr Keys kBert{"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"};
constexpr Keys kDistilBert{"dim", "n_layers", "n_heads", "hidden_dim", "activation"};

}  // namespace

void parse_bert_family(const ConfigFields& fields, ModelConfig& config) {
  const bool distil = config.model_type == "distilbert", roberta = config.model_type == "roberta";
  const Keys& keys = distil ? kDistilBert : kBert;
  config.kind = ModelKind::encoder;
  config.width = fields.size(keys.width);
  StackConfig& stack = config.encoder;
  stack.heads = stack.kv_heads = fields.size(keys.heads);
  stack.head_width = head_width_of(fields, config.width, stack.heads);
  stack.feed_forward = fields.size(keys.feed_forward, 16 * kMostWidth);
  stack.layers = equal_layers(fields.size(keys.layers, kMostLayers), stack.head_width);
  config.activation = fields.activation_or(keys.activation, "gelu");
  config.norm_epsilon = distil ? 1e-12 : fields.positive_or("layer_norm_eps", 1e-12);

  config.learned_positions = true;
  config.positions = fields.size("max_position_embeddings", kMostTokens);
  if (roberta) {
    if (!fields.has("pad_token_id") && !fields.is_null("pad_token_id")) config.pad_token = 1;
    require(config.pad_token >= 0 && config.pad_token < config.vocabulary, fields.where(),
            ": pad_token_id: expected a token id below ", config.vocabulary, ", from which positions count");
    config.first_position = config.pad_token + 1;
    config.padding_stays = true;
    require(config.positions > config.first_position, fields.where(), ": max_position_embeddings: expected more than ",
            config.first_position, ", the row of the first position, got ", config.positions);
    config.positions -= config.first_position;
  }
  config.token_types = distil ? 0 : fields.size_or("type_vocab_size", 2, kMostTokens);
  config.embedding_norm = true;
  config.form = BlockForm::post_norm;
  config.final_norm = false;
  config.qkv_bias = config.output_bias = config.feed_forward_bias = true;
  config.mask_head = config.head_bias = true;
  config.head_activation = roberta ? Activation::gelu : config.activation;
  config.tied_head = fields.boolean_or("tie_word_embeddings", true);
}

}  // namespace qkv::models
