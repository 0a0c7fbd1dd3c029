// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace qkv {

/// Text from a file, fit for one line of an error message: in double quotes, anything but printable ASCII escaped,
/// cut after 60 characters.
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 60;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7E) {
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace qkv
