// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>

#include "text/utf8.h"

namespace qkv::text {

/// The characters that stand for bytes in byte-level tokens: printable Latin-1 for itself, the others, in order, from
/// U+0100 on. A blank is U+0120.
inline const std::array<char32_t, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<char32_t, 256> table{};
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      table[byte] = printable ? byte : next++;
    }
    return table;
  }();
  return characters;
}
constexpr char32_t kBlankCharacter = 0x120;

/// The byte that a character stands for.
inline std::optional<unsigned char> byte_of_character(char32_t character) {
  static const auto bytes = [] {
    std::array<int, 0x144> table{};
    table.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) table[byte_characters()[byte]] = static_cast<int>(byte);
    return table;
  }();
  if (character >= bytes.size() || bytes[character] < 0) return {};
  return static_cast<unsigned char>(bytes[character]);
}

}  // namespace qkv::text
