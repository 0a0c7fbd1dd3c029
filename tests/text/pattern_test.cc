// SPDX-License-Identifier: Apache-2.0
// qkv's own matcher of simple expressions against Oniguruma, and the limits of both.
#include "text/pattern.h"

#include <gtest/gtest.h>

#include "qkv/support/error.h"
#include "random_stream.h"
#include "text/simple_regex.h"

namespace qkv::text {
namespace {

std::string shown(const Pattern& pattern, const std::string& text) {
  std::vector<Match> matches;
  pattern.find(text, matches);
  std::string result;
  for (const Match& match : matches) {
    result += match.is_match ? '[' : '(';
    result.append(text, match.begin, match.end - match.begin);
    result += match.is_match ? ']' : ')';
  }
  return result;
}

const char* const kSimple[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'ll)?|\p{N}{1,3}|\s+(?!\S)|\s+)",
    R"((?:ab|a)(?:bc|c)?)",
    R"((a+)+b)",
    R"((?:a|ab)(?=c)|b(?!c))",
    R"([a-c]{2}|x{2,}|y{0,1}z)",
    R"(a?a?a?aaa)",
    R"([\p{P}\p{S}]+|\P{L}\p{L}|[^a-z])",
    R"(\s{2,}|.)",
    R"((?:(?:a|b)+c|d)*e)",
    R"(x*)",
    R"((?=[A-Z]))",
    R"(a|)",
    R"((?i:k|s))",
    R"([a.-]+|\.\-)",
    R"((?:a?b)+c?)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|[ぁ-ヿ]+)",
};

class SimpleRegex : public testing::TestWithParam<int> {};

TEST_P(SimpleRegex, MatchesAsOnigurumaDoes) {
  const std::string expression = kSimple[GetParam()];
  const auto own = simple_pattern(expression, "own");
  ASSERT_NE(own, nullptr) << expression;
  const auto reference = oniguruma_pattern(expression, "reference");
  const char* const parts[] = {"a",      "b",      "c",     "ab",   "aaab", "e",       "x",      "yz",      "S",  "K",
                               "\u212A", "\u017F", "don't", "'LL",  " ",    "  ",      "\n",     "\r\n",    "\t", "é",
                               "É",      "ǅ",      "ʰ",     "中文", "ش",    "1",       "22",     "³",       "½",  ".",
                               "-",      "!?",     "€",     "d",    "Z",    "e\u0301", "\u200D", "👍🏽"};
  test::Stream random(static_cast<uint64_t>(GetParam()));
  for (int n = 0; n < 2000; ++n) {
    std::string text;
    for (int64_t k = random.integer(1, 12); k > 0; --k) text += random.pick(parts);
    ASSERT_EQ(shown(*own, text), shown(*reference, text)) << expression << " in " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(, SimpleRegex, testing::Range(0, static_cast<int>(std::size(kSimple))));

TEST(Pattern, WhatIsNotSimpleGoesToOniguruma) {
  for (const char* expression : {R"(\d)", R"(\w+)",      "^a",     "a$",     "(?<x>a)", R"((a)\1)", "a+?",
                                 "a{2}+", "[[:alpha:]]", "[a&&b]", "(a*)*",  "(?i:ss)", "(?i:é)",   R"(\p{Han})",
                                 "(?>a)", "(?<=a)b",     "a**",    "(?=a)*", "a{,2}",   "{",        "(?i)a"}) {
    EXPECT_EQ(simple_pattern(expression, "x"), nullptr) << expression;
  }
}

TEST(Pattern, MalformedExpressionsAreRefused) {
  for (const char* expression : {"(", ")", "[", "*", "(?", R"(\p{)", R"(\p{Nonsense})", "[b-a]"}) {
    EXPECT_THROW(regex_pattern(expression, "x"), Error) << expression;
  }
}

TEST(Pattern, BothStopAnEndlessSearch) {
  const std::string text(40, 'a');
  std::vector<Match> matches;
  EXPECT_THROW(simple_pattern("(?:(?:a|a)+)+b", "x")->find(text, matches), Error);
  EXPECT_THROW(oniguruma_pattern(R"((?:(?:a|a)+)+\d)", "x")->find(text, matches), Error);
}

TEST(Pattern, LiteralsAreFoundWithoutOverlap) {
  EXPECT_EQ(shown(*literal_pattern("aa"), "baaaab"), "(b)[aa][aa](b)");
  EXPECT_EQ(shown(*literal_pattern("."), "a.b"), "(a)[.](b)");
}

}  // namespace
}  // namespace qkv::text
