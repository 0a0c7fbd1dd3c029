// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/logit_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();
using Row = std::vector<float>;
using Tokens = std::vector<uint32_t>;

/// The row {1, -1, 2, -2} after the rules.
Row ruled(const LogitRules& rules, const Tokens& tokens, int64_t prompt, int64_t most = 100, const Tokens& ends = {3}) {
  Row logits{1, -1, 2, -2};
  apply_rules(rules, {tokens, prompt, most}, ends, logits);
  return logits;
}

TEST(LogitRules, NoneChangeNothing) { EXPECT_EQ(ruled({}, {0, 1, 2}, 1), (Row{1, -1, 2, -2})); }

TEST(LogitRules, RepetitionPenaltyDividesPositiveLogitsAndMultipliesOthersOnce) {
  EXPECT_EQ(ruled({.repetition_penalty = 2}, {0, 1, 1, 0}, 2), (Row{0.5, -2, 2, -2}));
  EXPECT_EQ(ruled({.repetition_penalty = 0.5}, {2, 3}, 2), (Row{1, -1, 4, -1}));
}

TEST(LogitRules, NoNgramComesTwice) {
  EXPECT_EQ(ruled({.no_repeat_ngram_size = 2}, {0, 1, 0, 2, 0}, 1), (Row{1, kGone, kGone, -2}));
  EXPECT_EQ(ruled({.no_repeat_ngram_size = 3}, {0, 1, 2, 0, 1}, 1), (Row{1, -1, kGone, -2}));
  EXPECT_EQ(ruled({.no_repeat_ngram_size = 1}, {2, 2}, 1), (Row{1, -1, kGone, -2}));
  EXPECT_EQ(ruled({.no_repeat_ngram_size = 3}, {0, 1}, 1), (Row{1, -1, 2, -2}));
}

TEST(LogitRules, BadWordsEndNowhereButEndTokensMay) {
  EXPECT_EQ(ruled({.bad_words = {{0}, {1, 2}, {3}}}, {0, 1}, 1), (Row{kGone, -1, kGone, -2}));
  EXPECT_EQ(ruled({.bad_words = {{1, 2}}}, {1, 0}, 1), (Row{1, -1, 2, -2}));
  EXPECT_EQ(ruled({.bad_words = {{0, 1, 0, 2}}}, {1, 0}, 1), (Row{1, -1, 2, -2}));
}

TEST(LogitRules, SequenceBiasesAreAddedWhereTheSequenceWouldBeWhole) {
  const LogitRules rules{.sequence_bias = {{{0}, 4}, {{1, 2}, 0.5}, {{0, 1, 2}, 0.25}, {{1, 0}, 1}}};
  EXPECT_EQ(ruled(rules, {0, 1}, 1), (Row{6, -1, 2.75, -2}));
  EXPECT_EQ(ruled(rules, {1, 1}, 1), (Row{6, -1, 2.5, -2}));
}

TEST(LogitRules, EndTokensWaitForTheLeastLength) {
  EXPECT_EQ(ruled({.min_length = 4}, {0, 1, 2}, 2), (Row{1, -1, 2, kGone}));
  EXPECT_EQ(ruled({.min_length = 3}, {0, 1, 2}, 2), (Row{1, -1, 2, -2}));
  EXPECT_EQ(ruled({.min_new_tokens = 2}, {0, 1, 2}, 2, 100, {0, 3}), (Row{kGone, -1, 2, kGone}));
  EXPECT_EQ(ruled({.min_new_tokens = 1}, {0, 1, 2}, 2), (Row{1, -1, 2, -2}));
}

TEST(LogitRules, ForcedTokensComeSecondAndLast) {
  const LogitRules rules{.forced_first = 1, .forced_last = {0, 3}};
  EXPECT_EQ(ruled(rules, {2}, 1, 10), (Row{kGone, 0, kGone, kGone}));
  EXPECT_EQ(ruled(rules, {2, 2}, 1, 10), (Row{1, -1, 2, -2}));
  EXPECT_EQ(ruled(rules, {2, 2}, 1, 3), (Row{0, kGone, kGone, 0}));
}

TEST(LogitRules, SuppressedTokensNeverComeOrNotFirst) {
  EXPECT_EQ(ruled({.suppressed = {2}}, {0, 1}, 1), (Row{1, -1, kGone, -2}));
  const LogitRules first{.suppressed_first = {2}};
  EXPECT_EQ(ruled(first, {0, 1}, 2), (Row{1, -1, kGone, -2}));
  EXPECT_EQ(ruled(first, {0, 1}, 1), (Row{1, -1, 2, -2}));
  // A token that is forced is not the first one that is chosen.
  const LogitRules both{.forced_first = 2, .suppressed_first = {0}};
  EXPECT_EQ(ruled(both, {0}, 1), (Row{kGone, kGone, 0, kGone}));
  EXPECT_EQ(ruled(both, {0, 2}, 1), (Row{kGone, -1, 2, -2}));
}

TEST(LogitRules, WhatIsOutsideTheVocabularyOrARangeIsRefusedByName) {
  const auto message = [](const LogitRules& rules) {
    try {
      check_rules(rules, 4);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.suppressed = {3}}), "");
  EXPECT_EQ(message({.suppressed = {4}}), "suppress_tokens: token 4 is not in the vocabulary of 4");
  EXPECT_EQ(message({.suppressed_first = {9}}), "begin_suppress_tokens: token 9 is not in the vocabulary of 4");
  EXPECT_EQ(message({.forced_first = 4}), "forced_bos_token_id: token 4 is not in the vocabulary of 4");
  EXPECT_EQ(message({.forced_last = {4}}), "forced_eos_token_id: token 4 is not in the vocabulary of 4");
  EXPECT_EQ(message({.bad_words = {{1, 4}}}), "bad_words_ids: token 4 is not in the vocabulary of 4");
  EXPECT_EQ(message({.sequence_bias = {{{4}, 1}}}), "sequence_bias: token 4 is not in the vocabulary of 4");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty: expected a number from 1e-6 to 1e6, got 0");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(message({.sequence_bias = {{{3}, -kInfinity}, {{1, 3}, 1e30f}}}), "");
  EXPECT_EQ(message({.sequence_bias = {{{3}, kInfinity}}}),
            "sequence_bias: expected a number of at most 1e+30 or -infinity, got inf");
  EXPECT_EQ(message({.bad_words = {{}}}), "bad_words_ids: expected lists of at least one token");
}

}  // namespace
}  // namespace qkv
