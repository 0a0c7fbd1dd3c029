// SPDX-License-Identifier: Apache-2.0
//
// Llama, Mistral, Qwen2, Qwen3 and Gemma-2: RMS norm, rotary positions, grouped heads, a gated feed-forward, and which
// layers see a window.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "models/config_fields.h"
#include "qkv/support/error.h"

namespace qkv::models {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

/// What a family's files may leave out.
struct Usual {
  const char* model_type;
  int64_t positions;
  int64_t kv_heads;  ///< 0: as many as heads
};
constexpr Usual kUsual[] = {
    {"llama", 2048, 0}, {"mistral", 131072, 8}, {"qwen2", 32768, 32}, {"qwen3", 32768, 32}, {"gemma2", 8192, 4}};

const Usual& usual(const std::string& model_type) {
  return *std::find_if(std::begin(kUsual), std::end(kUsual),
                       [&](const Usual& one) { return model_type == one.model_type; });
}

int64_t key_value_heads(const ConfigFields& fields, const ModelConfig& config) {
  const int64_t fixed = fields.is_null("num_key_value_heads") ? 0 : usual(config.model_type).kv_heads;
  return fields.size_or("num_key_value_heads", fixed > 0 ? fixed : config.decoder.heads);
}

/// Keys that a layer of kSliding sees; none where the file turns windows off.
std::optional<int64_t> window(const ConfigFields& fields, const std::string& model_type) {
  const bool qwen = model_type == "qwen2" || model_type == "qwen3";
  if (fields.is_null("sliding_window") || (qwen && !fields.boolean_or("use_sliding_window", false))) return {};
  return fields.size_or("sliding_window", 4096, int64_t{1} << 40);
}

/// The types that the family's rule gives.
std::vector<std::string> usual_types(const ConfigFields& fields, const ModelConfig& config) {
  const size_t count = config.decoder.layers.size();
  std::vector<std::string> types(count, kFull);
  if (config.model_type == "mistral") {
    if (!fields.is_null("sliding_window")) types.assign(count, kSliding);
  } else if (config.model_type == "gemma2") {
    for (size_t n = 0; n < count; n += 2) types[n] = kSliding;
  } else if (config.model_type != "llama" && window(fields, config.model_type)) {
    const int64_t first = fields.integer_or("max_window_layers", 28, 0, kMostLayers);
    for (size_t n = static_cast<size_t>(first); n < count; ++n) types[n] = kSliding;
  }
  return types;
}

/// The type of every layer: what the file says where the family listens to that.
std::vector<std::string> layer_types(const ConfigFields& fields, const ModelConfig& config) {
  const std::vector<std::string> usual = usual_types(fields, config), types = fields.strings("layer_types");
  if (types.empty()) return usual;
  require(types.size() == usual.size(), fields.where(), ": layer_types: expected ", usual.size(),
          " entries, one for each layer, got ", types.size());
  const bool listens = config.model_type != "llama" && config.model_type != "mistral";
  for (size_t n = 0; n < types.size(); ++n) {
    require(types[n] == kSliding || types[n] == kFull, fields.where(), ": layer_types: expected ", kSliding, " or ",
            kFull, ", got \"", types[n], "\"");
    require(listens || types[n] == usual[n], fields.where(), ": layer_types: layer ", n, ": expected ", usual[n],
            " in this family, got ", types[n]);
  }
  return types;
}

void set_windows(const ConfigFields& fields, const std::vector<std::string>& types, ModelConfig& config) {
  for (size_t n = 0; n < types.size(); ++n) {
    if (types[n] != kSliding) continue;
    LayerConfig& layer = config.decoder.layers[n];
    layer.window = window(fields, config.model_type);
    require(layer.window.has_value(), fields.where(), ": layer ", n, " is ", kSliding, ", but ",
            fields.is_null("sliding_window") ? "sliding_window is null" : "use_sliding_window is not true");
  }
}

void set_gemma(const ConfigFields& fields, ModelConfig& config) {
  fields.expect("use_bidirectional_attention", false);
  config.form = BlockForm::sandwich;
  config.norm_plus_one = true;
  // The model rounds the factor to its own type, f32 here.
  config.embedding_scale = static_cast<double>(std::sqrt(static_cast<float>(config.width)));
  const auto softcap = [&](const char* key, double usual) {
    return fields.is_null(key) ? 0 : fields.positive_or(key, usual);
  };
  config.score_softcap = softcap("attn_logit_softcapping", 50);
  config.logit_softcap = softcap("final_logit_softcapping", 30);
  const double scalar = fields.positive_or("query_pre_attn_scalar", 256);
  for (LayerConfig& layer : config.decoder.layers) layer.scale = 1 / std::sqrt(scalar);
}

int64_t head_width(const ConfigFields& fields, const ModelConfig& config) {
  if (fields.has("head_dim")) return fields.size("head_dim");
  if (config.model_type == "gemma2") return 256;
  if (config.model_type == "qwen3") return 128;
  return head_width_of(fields, config.width, config.decoder.heads);
}

}  // namespace

void parse_llama_family(const ConfigFields& fields, ModelConfig& config) {
  const std::string& type = config.model_type;
  const bool gemma = type == "gemma2";
  config.kind = ModelKind::decoder;
  config.width = fields.size("hidden_size");
  StackConfig& stack = config.decoder;
  stack.heads = fields.size("num_attention_heads");
  stack.kv_heads = key_value_heads(fields, config);
  stack.head_width = head_width(fields, config);
  stack.feed_forward = fields.size("intermediate_size", 16 * kMostWidth);
  stack.layers = equal_layers(fields.size("num_hidden_layers", kMostLayers), stack.head_width);
  config.activation = gemma ? fields.activation_or("hidden_activation", "gelu_pytorch_tanh")
                            : fields.activation_or("hidden_act", "silu");
  config.gated = true;
  config.norm = NormKind::rms;
  config.norm_epsilon = fields.positive_or("rms_norm_eps", 1e-6);
  config.positions = fields.size_or("max_position_embeddings", usual(type).positions, kMostTokens);
  config.form = BlockForm::pre_norm;
  config.query_key_norm = type == "qwen3";
  const bool bias = type == "qwen2" || fields.boolean_or("attention_bias", false);
  require(type != "mistral" || !bias, fields.where(), ": attention_bias: this family has none, got true");
  config.qkv_bias = bias;
  config.output_bias = bias && type != "qwen2";
  config.feed_forward_bias = fields.boolean_or("mlp_bias", false);
  require(type == "llama" || !config.feed_forward_bias, fields.where(), ": mlp_bias: this family has none, got true");
  config.tied_head = fields.boolean_or("tie_word_embeddings", gemma);
  if (gemma) set_gemma(fields, config);
  const std::vector<std::string> types = layer_types(fields, config);
  set_windows(fields, types, config);
  parse_rotary(fields, types, 1, config);
}

}  // namespace qkv::models
