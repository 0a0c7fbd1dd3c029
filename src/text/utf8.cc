// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace qkv::text {

size_t utf8_valid_length(std::string_view text, size_t* broken) {
  const auto byte = [&](size_t n) { return n < text.size() ? unsigned{static_cast<unsigned char>(text[n])} : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  *broken = 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = utf8_length(text[0]);
  // The second byte is restricted where a character would be overlong, a surrogate or beyond U+10FFFF.
  const unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t n = 2; n < length; ++n) {
    if ((byte(n) & 0xC0) != 0x80) {
      *broken = n;
      return 0;
    }
  }
  return length;
}

size_t utf8_first_invalid(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    for (uint64_t eight = 0; at + 8 <= text.size(); at += 8) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080) != 0) break;
    }
    size_t broken = 0;
    if (at >= text.size()) break;
    const size_t length = utf8_valid_length(text.substr(at), &broken);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string utf8_repaired(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    size_t broken = 0;
    const size_t length = utf8_valid_length(text, &broken);
    if (length == 0) {
      result += "\xEF\xBF\xBD";
      text.remove_prefix(broken);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

}  // namespace qkv::text
