// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::text {

/// What one code point may be. Bits; the sets are those of the package `tokenizers`, of whatever version of Unicode.
enum CharacterClass : uint32_t {
  kWhiteSpace = 1 << 0,
  kNumeric = 1 << 1,      ///< categories N*
  kPunctuation = 1 << 2,  ///< categories P*, and ASCII punctuation
  kOther = 1 << 3,        ///< control, format and private use, but no blanks
  kNonspacing = 1 << 4,   ///< category Mn
  kCombining = 1 << 5,    ///< categories M*
  kWord = 1 << 6,         ///< \w of the Whitespace pre-tokenizer
  kReordered = 1 << 7,    ///< has a combining class
  kDecomposed = 1 << 8,   ///< changes under NFKD
  // What regular expressions call \p{N}, \p{M}, \p{Lu}, \p{Lt}, \p{Ll}, \p{Lm}, \p{Lo}, \p{P}, \p{S}.
  kNumber = 1 << 9,
  kMark = 1 << 10,
  kUpperLetter = 1 << 11,
  kTitleLetter = 1 << 12,
  kLowerLetter = 1 << 13,
  kModifierLetter = 1 << 14,
  kOtherLetter = 1 << 15,
  kPunctuationMark = 1 << 16,
  kSymbol = 1 << 17,
};
constexpr uint32_t kLetter = kUpperLetter | kTitleLetter | kLowerLetter | kModifierLetter | kOtherLetter;

/// The classes of every code point, 0x110000 of them; built at the first call.
const uint32_t* character_classes();

inline bool is_any(char32_t c, uint32_t classes) { return (character_classes()[c] & classes) != 0; }
inline bool is_white_space(char32_t c) { return is_any(c, kWhiteSpace); }

/// The lower case of one character, when that is one character too. U+0130, the only one whose is not, stays.
char32_t lower_case(char32_t c);

/// The number of its script; Hiragana and Katakana count as Han, and 0 is of any script.
uint8_t script_of(char32_t c);

/// A character that a normalization produced. `change` is 0 when it replaces the next one of the text, 1 when it is
/// new, -n when it replaces one and n more are gone.
struct Change {
  char32_t character;
  int change;
};

enum class NormalizationForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// Appends the normalization form of valid UTF-8.
void normalize(NormalizationForm form, std::string_view text, std::vector<Change>& out);

/// Calls visit(cluster) for every extended grapheme cluster of valid UTF-8.
class GraphemeClusters {
 public:
  explicit GraphemeClusters(std::string_view text) : rest_(text) {}
  bool next(std::string_view* cluster);

 private:
  std::string_view rest_;
};

}  // namespace qkv::text
