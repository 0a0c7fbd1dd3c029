// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <utf8proc.h>

#include <memory>

#include "text/unicode_data.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

constexpr size_t kCodePoints = 0x110000;

struct Tables {
  std::vector<uint32_t> classes = std::vector<uint32_t>(kCodePoints);
  std::vector<int32_t> lower = std::vector<int32_t>(kCodePoints);
  std::vector<uint8_t> scripts = std::vector<uint8_t>(kCodePoints);

  Tables() {
    namespace data = unicode_data;
    mark(data::kNumeric, data::kNumericSize, kNumeric);
    mark(data::kPunctuation, data::kPunctuationSize, kPunctuation);
    mark(data::kOther, data::kOtherSize, kOther);
    mark(data::kNonspacing, data::kNonspacingSize, kNonspacing);
    mark(data::kCombining, data::kCombiningSize, kCombining);
    mark(data::kWord, data::kWordSize, kWord);
    mark(data::kReordered, data::kReorderedSize, kReordered);
    mark(data::kDecomposed, data::kDecomposedSize, kDecomposed);
    mark(data::kNumber, data::kNumberSize, kNumber);
    mark(data::kMark, data::kMarkSize, kMark);
    mark(data::kUpperLetter, data::kUpperLetterSize, kUpperLetter);
    mark(data::kTitleLetter, data::kTitleLetterSize, kTitleLetter);
    mark(data::kLowerLetter, data::kLowerLetterSize, kLowerLetter);
    mark(data::kModifierLetter, data::kModifierLetterSize, kModifierLetter);
    mark(data::kOtherLetter, data::kOtherLetterSize, kOtherLetter);
    mark(data::kPunctuationMark, data::kPunctuationMarkSize, kPunctuationMark);
    mark(data::kSymbol, data::kSymbolSize, kSymbol);
    constexpr size_t kWhiteSpaceRuns[][2] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                             {0x205F, 0x205F}, {0x3000, 0x3000}};
    for (const auto& [first, last] : kWhiteSpaceRuns) {
      for (size_t c = first; c <= last; ++c) classes[c] |= kWhiteSpace;
    }
    for (size_t n = 0; n < data::kLowerCaseSize; n += 4) {
      const int32_t* run = data::kLowerCase + n;
      for (int32_t k = 0; k < run[1]; ++k) lower[static_cast<size_t>(run[0] + k * run[2])] = run[3];
    }
    size_t at = 0;
    for (size_t n = 0; n < data::kScriptsSize; n += 2) {
      for (const size_t end = at + data::kScripts[n]; at < end; ++at)
        scripts[at] = static_cast<uint8_t>(data::kScripts[n + 1]);
    }
  }

 private:
  void mark(const uint32_t* gaps, size_t size, CharacterClass bit) {
    size_t at = 0;
    for (size_t n = 0; n < size; n += 2) {
      at += gaps[n];
      for (const size_t end = at + gaps[n + 1]; at < end; ++at) {
        classes[at] |= bit;
      }
    }
  }
};

const Tables& tables() {
  static const Tables built;
  return built;
}

}  // namespace

const uint32_t* character_classes() {
  static const uint32_t* const classes = tables().classes.data();
  return classes;
}

char32_t lower_case(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  static const int32_t* const distance = tables().lower.data();
  return static_cast<char32_t>(static_cast<int32_t>(c) + distance[c]);
}

uint8_t script_of(char32_t c) { return tables().scripts[c]; }

bool GraphemeClusters::next(std::string_view* cluster) {
  if (rest_.empty()) return false;
  size_t end = utf8_length(rest_[0]);
  auto before = static_cast<utf8proc_int32_t>(utf8_decode(rest_.data()));
  utf8proc_int32_t state = 0;
  while (end < rest_.size()) {
    const auto after = static_cast<utf8proc_int32_t>(utf8_decode(rest_.data() + end));
    const bool ascii = before < 0x80 && after < 0x80 && before != '\r';
    if (ascii || utf8proc_grapheme_break_stateful(before, after, &state)) break;
    end += utf8_length(rest_[end]);
    before = after;
  }
  *cluster = rest_.substr(0, end);
  rest_.remove_prefix(end);
  return true;
}

}  // namespace qkv::text
