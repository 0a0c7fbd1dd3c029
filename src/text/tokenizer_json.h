// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_fields.h"

namespace qkv::text {

/// A tokenizer.json before its parts are made. The vocabulary and the merges, nearly all of a file, are taken out of
/// the JSON as it is read.
struct TokenizerJson {
  struct Entry {
    std::string token;
    uint32_t id = 0;   ///< of a vocabulary written as an object
    double score = 0;  ///< of one written as a list
  };
  enum class Kind : uint8_t { absent, object, list };

  Json root;  ///< an object; root["model"] lacks `vocab` and `merges`
  Kind vocabulary_kind = Kind::absent;
  std::vector<Entry> vocabulary;
  bool has_merges = false;
  std::vector<std::pair<std::string, std::string>> merges;
};

/// Throws Error; `name` starts the messages.
TokenizerJson parse_tokenizer_json(std::string_view json, const std::string& name);

/// A JSON number as the package `tokenizers` reads it: its digits as one integer, times or divided by a power of ten.
/// The result may be a unit in the last place off the nearest double, and where scores tie that unit decides.
double number_from_text(std::string_view text);

}  // namespace qkv::text
