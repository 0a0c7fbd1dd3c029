// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "qkv/models/config.h"

namespace qkv::models {

using Json = nlohmann::json;

/// Sizes beyond these are absurd: no product of a few of them overflows, and no model comes near.
inline constexpr int64_t kMostWidth = int64_t{1} << 20, kMostLayers = 10000, kMostTokens = int64_t{1} << 31;

/// The keys of one object of a config.json. null counts as absent. Every reader throws Error that names the key, what
/// was expected and what came.
class ConfigFields {
 public:
  /// `where` starts the messages; `object` must outlive this.
  ConfigFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  bool has(const char* key) const { return find(key) != nullptr; }
  /// It is there and null: where that means another thing than its absence.
  bool is_null(const char* key) const;
  const Json* find(const char* key) const;

  /// An integer in [1, most].
  int64_t size(const char* key, int64_t most = kMostWidth) const;
  int64_t size_or(const char* key, int64_t otherwise, int64_t most = kMostWidth) const;
  int64_t integer_or(const char* key, int64_t otherwise, int64_t least, int64_t most) const;
  /// A token id; -1 when absent.
  int64_t token(const char* key, int64_t vocabulary) const;
  /// One id or a list of them.
  std::vector<int64_t> tokens(const char* key, int64_t vocabulary) const;
  /// The same less ids beyond the vocabulary: no such token is ever read or said, but configurations that were cut down
  /// from those of larger models carry them.
  std::vector<int64_t> known_tokens(const char* key, int64_t vocabulary) const;
  double number(const char* key) const;
  double number_or(const char* key, double otherwise) const;
  double positive_or(const char* key, double otherwise) const;
  bool boolean_or(const char* key, bool otherwise) const;
  std::string string(const char* key) const;
  std::string string_or(const char* key, const char* otherwise) const;
  Activation activation_or(const char* key, const char* otherwise) const;
  std::vector<std::string> strings(const char* key) const;

  /// Refuses a value that changes results in a way that is not supported.
  void expect(const char* key, bool value) const;
  void expect(const char* key, const char* value) const;
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

 private:
  const Json& object_;
  std::string where_;
};

/// The activation of that name in Transformers; throws Error that starts with `where` for one that is not supported.
Activation parse_activation(const std::string& name, const std::string& where);

// One function for each group of families, with the sizes and tokens that all share already read.
void parse_bert_family(const ConfigFields& fields, ModelConfig& config);
void parse_gpt2(const ConfigFields& fields, ModelConfig& config);
void parse_gpt_neox(const ConfigFields& fields, ModelConfig& config);
void parse_llama_family(const ConfigFields& fields, ModelConfig& config);
void parse_t5(const ConfigFields& fields, ModelConfig& config);
void parse_bart(const ConfigFields& fields, ModelConfig& config);

/// Rotary settings in any spelling: fills config.rotary, and `rotary` of every layer of the decoder, whose types are
/// `layer_types` (empty: all the same).
void parse_rotary(const ConfigFields& fields, const std::vector<std::string>& layer_types, double default_fraction,
                  ModelConfig& config);

/// `count` equal layers with scores scaled by 1 / sqrt(head_width).
std::vector<LayerConfig> equal_layers(int64_t count, int64_t head_width);
/// width / heads, which must be whole.
int64_t head_width_of(const ConfigFields& fields, int64_t width, int64_t heads);

}  // namespace qkv::models
