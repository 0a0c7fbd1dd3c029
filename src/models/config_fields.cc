// SPDX-License-Identifier: Apache-2.0
#include "models/config_fields.h"

#include <cmath>
#include <utility>

#include "models/json_file.h"
#include "qkv/support/error.h"

namespace qkv::models {

ConfigFields::ConfigFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  require(object.is_object(), where_, ": expected an object, got ", shown(object));
}

const Json* ConfigFields::find(const char* key) const {
  const auto place = object_.find(key);
  return place == object_.end() || place->is_null() ? nullptr : &*place;
}

bool ConfigFields::is_null(const char* key) const {
  const auto place = object_.find(key);
  return place != object_.end() && place->is_null();
}

void ConfigFields::refuse(const char* key, const std::string& expected) const {
  const Json* value = find(key);
  fail(where_, ": ", key, ": expected ", expected, ", got ", value == nullptr ? "nothing" : shown(*value));
}

int64_t ConfigFields::size(const char* key, int64_t most) const {
  const Json* value = find(key);
  const bool fits = value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
                    value->get<uint64_t>() <= static_cast<uint64_t>(most);
  if (!fits) refuse(key, concat("an integer from 1 to ", most));
  return value->get<int64_t>();
}

int64_t ConfigFields::size_or(const char* key, int64_t otherwise, int64_t most) const {
  return has(key) ? size(key, most) : otherwise;
}

int64_t ConfigFields::integer_or(const char* key, int64_t otherwise, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(most)) &&
                    value->get<int64_t>() >= least && value->get<int64_t>() <= most;
  if (!fits) refuse(key, concat("an integer from ", least, " to ", most));
  return value->get<int64_t>();
}

int64_t ConfigFields::token(const char* key, int64_t vocabulary) const {
  return integer_or(key, -1, -1, vocabulary - 1);
}

std::vector<int64_t> ConfigFields::tokens(const char* key, int64_t vocabulary) const {
  const Json* value = find(key);
  std::vector<int64_t> ids;
  if (value == nullptr) return ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    const bool fits = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocabulary);
    if (!fits) refuse(key, concat("a token id below ", vocabulary, " or a list of such"));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<int64_t> ConfigFields::known_tokens(const char* key, int64_t vocabulary) const {
  std::vector<int64_t> ids = tokens(key, kMostTokens);
  std::erase_if(ids, [&](int64_t id) { return id >= vocabulary; });
  return ids;
}

double ConfigFields::number(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) refuse(key, "a number");
  return value->get<double>();
}

double ConfigFields::number_or(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }

double ConfigFields::positive_or(const char* key, double otherwise) const {
  const double value = number_or(key, otherwise);
  if (!(value > 0)) refuse(key, "a positive number");
  return value;
}

bool ConfigFields::boolean_or(const char* key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ConfigFields::string(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::string ConfigFields::string_or(const char* key, const char* otherwise) const {
  return has(key) ? string(key) : otherwise;
}

std::vector<std::string> ConfigFields::strings(const char* key) const {
  std::vector<std::string> result;
  const Json* value = find(key);
  if (value == nullptr) return result;
  if (!value->is_array()) refuse(key, "a list of strings");
  for (const Json& entry : *value) {
    if (!entry.is_string()) refuse(key, "a list of strings");
    result.push_back(entry.get<std::string>());
  }
  return result;
}

Activation ConfigFields::activation_or(const char* key, const char* otherwise) const {
  return parse_activation(string_or(key, otherwise), concat(where_, ": ", key));
}

void ConfigFields::expect(const char* key, bool value) const {
  if (boolean_or(key, value) != value) refuse(key, concat(value ? "true" : "false", ", the only value supported"));
}

void ConfigFields::expect(const char* key, const char* value) const {
  if (string_or(key, value) != value) refuse(key, concat("\"", value, "\", the only value supported"));
}

Activation parse_activation(const std::string& name, const std::string& where) {
  if (name == "relu") return Activation::relu;
  if (name == "gelu" || name == "gelu_python") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_python_tanh" || name == "gelu_fast" ||
      name == "gelu_accurate") {
    return Activation::gelu_tanh;
  }
  if (name == "silu" || name == "swish") return Activation::silu;
  fail(where, ": activation \"", name,
       "\" is not supported, expected relu, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, silu or swish");
}

std::vector<LayerConfig> equal_layers(int64_t count, int64_t head_width) {
  LayerConfig layer;
  layer.scale = 1 / std::sqrt(static_cast<double>(head_width));
  return std::vector<LayerConfig>(static_cast<size_t>(count), layer);
}

int64_t head_width_of(const ConfigFields& fields, int64_t width, int64_t heads) {
  require(width % heads == 0, fields.where(), ": a width of ", width, " does not divide into ", heads, " heads");
  return width / heads;
}

}  // namespace qkv::models
