// SPDX-License-Identifier: Apache-2.0
//
// config.json of a Hugging Face folder. What is absent has the default that Transformers' class for the model_type has,
// except sizes, which must be there. A value that changes results and is not understood is refused by its key.
#include "qkv/models/config.h"

#include "models/families.h"
#include "models/json_file.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

using models::ConfigFields;
using models::Json;

/// What no family may have otherwise.
void refuse_unsupported(const ConfigFields& fields) {
  require(!fields.has("quantization_config"), fields.where(),
          ": quantization_config: quantized weights are not supported, expected f32, bf16 or f16");
  require(!fields.has("pruned_heads") || fields.find("pruned_heads")->empty(), fields.where(),
          ": pruned_heads: pruned models are not supported");
  require(!fields.has("per_layer_config") || fields.find("per_layer_config")->empty(), fields.where(),
          ": per_layer_config: layers of different sizes are not supported");
  fields.expect("position_embedding_type", "absolute");
  fields.expect("is_decoder", fields.boolean_or("is_decoder", false) && fields.string("model_type") == "gpt_neox");
  fields.expect("add_cross_attention", false);
  fields.expect("use_mrope", false);
}

void check_stack(const ConfigFields& fields, const StackConfig& stack) {
  require(stack.kv_heads >= 1 && stack.heads % stack.kv_heads == 0, fields.where(),
          ": num_key_value_heads: ", stack.kv_heads, " does not divide ", stack.heads, " heads");
  require(stack.heads <= models::kMostWidth / stack.head_width, fields.where(), ": ", stack.heads, " heads of width ",
          stack.head_width, " are more than ", models::kMostWidth, " wide");
}

}  // namespace

std::string_view name(ModelKind kind) {
  switch (kind) {
    case ModelKind::encoder: return "encoder";
    case ModelKind::decoder: return "decoder";
    case ModelKind::encoder_decoder: return "encoder-decoder";
  }
  return "";
}

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const Json json = models::parse_json(text, file);
  const ConfigFields fields(json, file);
  const models::Family& family = models::family_of(fields.string("model_type"), file);
  refuse_unsupported(fields);
  ModelConfig config;
  config.model_type = family.model_type;
  config.vocabulary = fields.size("vocab_size", models::kMostTokens);
  config.pad_token = fields.token("pad_token_id", models::kMostTokens);
  family.parse(fields, config);
  if (config.has_decoder()) fields.expect("is_causal", true);
  if (config.has_encoder()) check_stack(fields, config.encoder);
  if (config.has_decoder()) check_stack(fields, config.decoder);
  return config;
}

ModelConfig read_model_config(const std::string& path) { return parse_model_config(models::read_text(path), path); }

}  // namespace qkv
