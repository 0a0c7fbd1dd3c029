// SPDX-License-Identifier: Apache-2.0
//
// Rotary settings in the spellings that files use: rope_theta, rope_scaling, partial_rotary_factor; rotary_emb_base and
// rotary_pct of GPT-NeoX; rope_parameters of Transformers 5, one for all layers or one for each type of layer.
#include <algorithm>
#include <map>

#include "models/config_fields.h"
#include "qkv/support/error.h"

namespace qkv::models {
namespace {

/// What an object of rotary settings may leave to the keys around it.
struct Around {
  double theta = 10000, fraction = 1;
  int64_t positions = 0;
  double original = 0;   ///< original_max_position_embeddings, which wins over that inside the object; 0: absent
  bool partial = false;  ///< the family may turn a part of a head
};

RotaryScaling::Kind kind_of(const ConfigFields& fields) {
  const char* key = fields.has("rope_type") ? "rope_type" : "type";
  const std::string type = fields.string_or(key, "default");
  if (type == "default") return RotaryScaling::Kind::none;
  if (type == "linear") return RotaryScaling::Kind::linear;
  if (type == "llama3") return RotaryScaling::Kind::llama3;
  if (type == "yarn") return RotaryScaling::Kind::yarn;
  const bool by_length = type == "dynamic" || type == "longrope" || type == "su";
  fail(fields.where(), ": ", key, ": \"", type, "\" is not supported",
       by_length ? ": its frequencies change with the length of the text" : "",
       "; expected default, linear, llama3 or yarn");
}

/// A positive number from 2^-31 to 2^31, beyond which no length, factor or amplitude is meant.
double plausible(const ConfigFields& fields, const char* key) {
  const double value = fields.number(key), most = static_cast<double>(kMostTokens);
  if (!(value >= 1 / most && value <= most))
    fields.refuse(key, concat("a positive number from 1/", kMostTokens, " to ", kMostTokens));
  return value;
}
double plausible_or(const ConfigFields& fields, const char* key, double otherwise) {
  return fields.has(key) ? plausible(fields, key) : otherwise;
}

RotaryScaling read_scaling(const ConfigFields& fields, const Around& around) {
  RotaryScaling scaling;
  scaling.kind = kind_of(fields);
  if (scaling.kind == RotaryScaling::Kind::none) return scaling;
  const auto positions = static_cast<double>(around.positions);
  if (scaling.kind != RotaryScaling::Kind::linear) {
    scaling.original_length = plausible_or(fields, "original_max_position_embeddings", positions);
    if (around.original > 0) scaling.original_length = around.original;
  }
  const bool implied = scaling.kind == RotaryScaling::Kind::yarn && !fields.has("factor");
  scaling.factor = implied ? positions / scaling.original_length : plausible(fields, "factor");
  if (scaling.kind == RotaryScaling::Kind::llama3) {
    scaling.low_frequency_factor = plausible(fields, "low_freq_factor");
    scaling.high_frequency_factor = plausible(fields, "high_freq_factor");
    require(scaling.high_frequency_factor > scaling.low_frequency_factor, fields.where(),
            ": high_freq_factor: expected more than low_freq_factor, got ", scaling.high_frequency_factor, " and ",
            scaling.low_frequency_factor);
  } else if (scaling.kind == RotaryScaling::Kind::yarn) {
    scaling.beta_fast = plausible_or(fields, "beta_fast", 32);
    scaling.beta_slow = plausible_or(fields, "beta_slow", 1);
    scaling.truncate = fields.boolean_or("truncate", true);
    scaling.mscale = fields.number_or("mscale", 0);
    scaling.mscale_all_dim = fields.number_or("mscale_all_dim", 0);
    if (fields.has("attention_factor")) scaling.attention_factor = plausible(fields, "attention_factor");
  }
  return scaling;
}

RotaryOptions read_rotary(const ConfigFields& fields, const Around& around, int64_t head_width) {
  RotaryOptions rotary;
  rotary.base = fields.positive_or("rope_theta", around.theta);
  const double fraction = fields.number_or("partial_rotary_factor", around.fraction);
  require(fraction > 0 && fraction <= 1, fields.where(),
          ": the rotated part of a head: expected more than 0 and at most 1, got ", fraction);
  rotary.width = static_cast<int64_t>(static_cast<double>(head_width) * fraction);
  require(rotary.width >= 2 && rotary.width % 2 == 0, fields.where(), ": rotary positions turn ", rotary.width, " of ",
          head_width, " elements of a head, expected an even number");
  require(fraction == 1 || around.partial, fields.where(),
          ": partial_rotary_factor: this family turns whole heads, got ", fraction);
  rotary.scaling = read_scaling(fields, around);
  std::vector<double> numbers;
  try {
    numbers = rotary_frequencies(rotary);  // what it would refuse later
    numbers.push_back(rotary_amplitude(rotary));
  } catch (const Error& error) {
    fail(fields.where(), ": ", error.what());
  }
  for (const double number : numbers) {  // none of them NaN
    require(number >= 0 && number <= static_cast<double>(kMostTokens), fields.where(),
            ": these numbers give a frequency or an amplitude of ", number);
  }
  return rotary;
}

/// GPT-NeoX has names of its own; versions of Transformers differ on what the others mean there, so those must agree.
Around read_around(const ConfigFields& fields, const ModelConfig& config, double fraction) {
  Around around;
  around.positions = config.positions;
  around.partial = config.model_type == "gpt_neox";
  around.theta = fields.positive_or(around.partial ? "rotary_emb_base" : "rope_theta", around.theta);
  around.fraction = fields.number_or(around.partial ? "rotary_pct" : "partial_rotary_factor", fraction);
  const double theta = fields.positive_or("rope_theta", around.theta);
  require(theta == around.theta, fields.where(), ": rope_theta: expected ", around.theta, " as rotary_emb_base, got ",
          theta);
  const double part = fields.number_or("partial_rotary_factor", around.fraction);
  require(part == around.fraction, fields.where(), ": partial_rotary_factor: expected ", around.fraction,
          " as rotary_pct, got ", part);
  if (fields.has("original_max_position_embeddings")) {
    around.original = plausible(fields, "original_max_position_embeddings");
  }
  return around;
}

}  // namespace

void parse_rotary(const ConfigFields& fields, const std::vector<std::string>& layer_types, double default_fraction,
                  ModelConfig& config) {
  Around around = read_around(fields, config, default_fraction);
  const bool is_old = fields.has("rope_scaling") && !fields.find("rope_scaling")->empty();
  const char* key = is_old ? "rope_scaling" : "rope_parameters";
  static const Json kEmpty = Json::object();
  const Json& all = fields.has(key) ? *fields.find(key) : kEmpty;
  const ConfigFields settings(all, concat(fields.where(), ": ", key));
  const int64_t width = config.decoder.head_width;
  const bool nested =
      std::any_of(layer_types.begin(), layer_types.end(), [&](const std::string& type) { return all.contains(type); });
  if (!nested) {
    config.rotary.push_back(read_rotary(settings, around, width));
    for (LayerConfig& layer : config.decoder.layers) layer.rotary = 0;
    return;
  }
  around.original = 0;
  std::map<std::string, int> place;
  for (size_t n = 0; n < config.decoder.layers.size(); ++n) {
    const std::string& type = layer_types[n];
    if (place.count(type) == 0) {
      const Json* own = settings.find(type.c_str());
      require(own != nullptr, settings.where(), ": expected settings for ", type, ", which are missing");
      place[type] = static_cast<int>(config.rotary.size());
      config.rotary.push_back(read_rotary(ConfigFields(*own, settings.where() + ": " + type), around, width));
    }
    config.decoder.layers[n].rotary = place[type];
  }
}

}  // namespace qkv::models
