// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace qkv::text {

/// How many bytes the character that begins with this byte has, in valid UTF-8.
inline size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// Whether a byte is not the first of a character.
inline bool utf8_continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// The character at `text`, which is valid UTF-8.
inline char32_t utf8_decode(const char* text) {
  const auto byte = [&](int n) { return static_cast<char32_t>(static_cast<unsigned char>(text[n])); };
  const char32_t first = byte(0);
  if (first < 0x80) return first;
  if (first < 0xE0) return (first & 0x1F) << 6 | (byte(1) & 0x3F);
  if (first < 0xF0) return (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

/// The character that ends before text[end]; end > 0.
inline char32_t utf8_before(std::string_view text, size_t end, size_t* begin) {
  size_t at = end - 1;
  while (utf8_continues(text[at])) --at;
  *begin = at;
  return utf8_decode(text.data() + at);
}

/// Writes a character, at most four bytes; returns how many.
inline size_t utf8_encode(char32_t c, char* out) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out[0] = static_cast<char>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<char>(0xC0 | c >> 6);
    out[1] = tail(0);
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<char>(0xE0 | c >> 12);
    out[1] = tail(6);
    out[2] = tail(0);
    return 3;
  }
  out[0] = static_cast<char>(0xF0 | c >> 18);
  out[1] = tail(12);
  out[2] = tail(6);
  out[3] = tail(0);
  return 4;
}

inline void utf8_append(std::string& text, char32_t c) {
  char bytes[4];
  text.append(bytes, utf8_encode(c, bytes));
}

/// Calls visit(position, character) for each character of valid UTF-8.
template <class Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) visit(at, utf8_decode(text.data() + at));
}

inline size_t utf8_count(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += !utf8_continues(byte);
  return count;
}

/// How many bytes at the front of `text` are one valid character; 0 when none are. Then `*broken` is how many bytes are
/// the longest beginning of one, at least 1: what is replaced by one U+FFFD.
size_t utf8_valid_length(std::string_view text, size_t* broken);

/// Where the first byte that is not part of valid UTF-8 stands; npos when there is none.
size_t utf8_first_invalid(std::string_view text);

/// Valid UTF-8: each broken character becomes U+FFFD, as Unicode recommends.
std::string utf8_repaired(std::string_view text);

}  // namespace qkv::text
