// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Facts about code points, as the package `tokenizers` knows them; see script/unicode_data.py.
namespace qkv::unicode_data {

// Sets of code points, as pairs: code points skipped since the last run, code points in this run.
extern const uint32_t kNumeric[], kPunctuation[], kOther[], kNonspacing[], kCombining[], kWord[];
extern const uint32_t kReordered[], kDecomposed[], kNumber[], kMark[], kUpperLetter[], kTitleLetter[];
extern const uint32_t kLowerLetter[], kModifierLetter[], kOtherLetter[], kPunctuationMark[], kSymbol[];
extern const size_t kNumericSize, kPunctuationSize, kOtherSize, kNonspacingSize, kCombiningSize, kWordSize;
extern const size_t kReorderedSize, kDecomposedSize, kNumberSize, kMarkSize, kUpperLetterSize;
extern const size_t kTitleLetterSize, kLowerLetterSize, kModifierLetterSize, kOtherLetterSize;
extern const size_t kPunctuationMarkSize, kSymbolSize;

// Runs of code points with a lower case, as four numbers: the first, how many, their step, the distance to it.
extern const int32_t kLowerCase[];
extern const size_t kLowerCaseSize;

// Runs of one script, as pairs: code points in the run, the number of the script.
extern const uint32_t kScripts[];
extern const size_t kScriptsSize;

}  // namespace qkv::unicode_data
