// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_fields.h"
#include "text/utf8.h"

namespace qkv::text {

/// Bytes [begin, end) of a text: a match, or what stands between two.
struct Match {
  size_t begin, end;
  bool is_match;
};

/// What is looked for in a text. Matches and what stands between them cover the text, in order; an empty match stands
/// between two characters.
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// Appends them. `text` is valid UTF-8 and not empty.
  virtual void find(std::string_view text, std::vector<Match>& out) const = 0;
};

/// A string that is not empty.
std::unique_ptr<Pattern> literal_pattern(const std::string& text);

/// A regular expression as Oniguruma reads it: matched by qkv itself if it is simple, see simple_regex.h, otherwise by
/// Oniguruma. Patterns come from strangers: a search that takes too many steps is an Error. `where` starts the
/// messages.
std::unique_ptr<Pattern> regex_pattern(const std::string& expression, const std::string& where);
std::unique_ptr<Pattern> oniguruma_pattern(const std::string& expression, const std::string& where);

/// What splits text for byte-level models where their file says no expression of its own: GPT-2's.
std::unique_ptr<Pattern> byte_level_pattern();

/// {"String": ...} or {"Regex": ...}.
std::unique_ptr<Pattern> make_pattern(const Json& json, const std::string& where);

/// Single characters for which `holds(character)`.
template <class Holds>
void find_characters(std::string_view text, Holds&& holds, std::vector<Match>& out) {
  size_t begin = 0;
  for_each_character(text, [&](size_t at, char32_t c) {
    if (!holds(c)) return;
    const size_t end = at + utf8_length(text[at]);
    if (begin < at) out.push_back({begin, at, false});
    out.push_back({at, end, true});
    begin = end;
  });
  if (begin < text.size()) out.push_back({begin, text.size(), false});
}

}  // namespace qkv::text
