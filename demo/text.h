// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>

namespace demo {

/// `text` with blanks up to `columns`. A numbered word is UTF-8, whose continuation bytes take no column.
inline std::string padded(std::string text, size_t columns) {
  const auto is_column = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  const auto used = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_column));
  text.append(columns > used ? columns - used : 0, ' ');
  return text;
}

/// "her¹ 0.79"
inline std::string with_weight(const std::string& word, float weight) {
  char number[16];
  std::snprintf(number, sizeof number, " %.2f", static_cast<double>(weight));
  return word + number;
}

}  // namespace demo
