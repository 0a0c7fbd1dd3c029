// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

/// A part of a text that is found as a whole.
struct Passage {
  int64_t line = 0;  ///< its first, counted from 1
  std::string text;  ///< without blank lines around it
  bool operator==(const Passage&) const = default;
};

/// How many tokens a text has.
using CountTokens = std::function<int64_t(std::string_view text)>;

/// Cuts a text, valid UTF-8, into passages: whole paragraphs, that is, runs of lines that are not blank, as many as
/// have at most `most` tokens together; one shorter than a quarter of that takes the next paragraph in any case. A line
/// that begins with # begins a passage. A longer paragraph is cut between lines, a longer line between words, a longer
/// word after every `most` characters. Throws Error when `most` is not positive.
std::vector<Passage> cut_passages(std::string_view text, int64_t most, const CountTokens& count_tokens);

}  // namespace qkv
