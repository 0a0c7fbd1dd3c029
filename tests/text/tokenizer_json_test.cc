// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "qkv/support/error.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace qkv::text {
namespace {

TEST(TokenizerJson, TakesVocabularyAndMergesOutOfTheRest) {
  const TokenizerJson file = parse_tokenizer_json(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b", ["b", "a"]],
          "x": [1, {"y": null}]}, "z": "é"})",
      "t");
  ASSERT_EQ(file.vocabulary.size(), 2U);
  EXPECT_EQ(file.vocabulary[1].token, "b");
  EXPECT_EQ(file.vocabulary[1].id, 1U);
  ASSERT_EQ(file.merges.size(), 2U);
  EXPECT_EQ(file.merges[0], std::make_pair(std::string("a"), std::string("b")));
  EXPECT_EQ(file.merges[1], std::make_pair(std::string("b"), std::string("a")));
  EXPECT_EQ(file.root.dump(), R"({"model":{"type":"BPE","x":[1,{"y":null}]},"z":"é"})");
}

TEST(TokenizerJson, OnlyTheModelsVocabularyIsOne) {
  const TokenizerJson file =
      parse_tokenizer_json(R"({"vocab": {"a": 0}, "model": {"inner": {"vocab": {"b": 1}}}})", "t");
  EXPECT_EQ(file.vocabulary_kind, TokenizerJson::Kind::absent);
  EXPECT_EQ(file.root.dump(), R"({"model":{"inner":{"vocab":{"b":1}}},"vocab":{"a":0}})");
}

TEST(TokenizerJson, ScoresAreIntegersOrNot) {
  const TokenizerJson file = parse_tokenizer_json(R"({"model": {"vocab": [["a", -1], ["b", 2], ["c", -0.5]]}})", "t");
  ASSERT_EQ(file.vocabulary.size(), 3U);
  EXPECT_EQ(file.vocabulary[0].score, -1.0);
  EXPECT_EQ(file.vocabulary[1].score, 2.0);
  EXPECT_EQ(file.vocabulary[2].score, -0.5);
}

TEST(NumberFromText, IsDigitsTimesAPowerOfTen) {
  EXPECT_EQ(number_from_text("0.1"), 1 / 10.0);
  EXPECT_EQ(number_from_text("-12.50"), -1250 / 100.0);
  EXPECT_EQ(number_from_text("1e3"), 1000.0);
  EXPECT_EQ(number_from_text("2.5E-3"), 25 / 10000.0);
  EXPECT_EQ(number_from_text("1e-400"), 0.0);
  EXPECT_EQ(number_from_text("5e-324"), 5 / 1e308 / 1e16);
  // Twenty digits do not fit: in front of the point they count, behind it they are dropped.
  EXPECT_EQ(number_from_text("123456789012345678901.5"), 12345678901234567890.0 * 10);
  EXPECT_EQ(number_from_text("0.99999999999999999999999"), 9999999999999999999.0 / 1e19);
  // Rounded twice, and so not the nearest double.
  EXPECT_EQ(number_from_text("-9.841955184936523"), -9841955184936523.0 / 1e15);
}

TEST(Vocabulary, FindsTokensBothWays) {
  Vocabulary vocabulary;
  for (uint32_t n = 0; n < 1000; ++n) ASSERT_TRUE(vocabulary.add(concat("token", n), 3 * n + 5));
  EXPECT_FALSE(vocabulary.add("token7", 1));
  vocabulary.index_ids();
  for (uint32_t n = 0; n < 1000; ++n) {
    ASSERT_EQ(vocabulary.id(concat("token", n)), 3 * n + 5);
    ASSERT_EQ(vocabulary.token(3 * n + 5), concat("token", n));
    ASSERT_FALSE(vocabulary.token(3 * n + 6));
  }
  EXPECT_FALSE(vocabulary.id("token"));
  EXPECT_FALSE(vocabulary.id(""));
  EXPECT_EQ(vocabulary.id_limit(), 3003U);
}

TEST(Vocabulary, OfEqualTokensTheLastCounts) {
  Vocabulary vocabulary;
  for (uint32_t n = 0; n < 100; ++n) vocabulary.replace(n % 2 == 0 ? std::string("same") : concat("x", n), n);
  vocabulary.index_ids();
  EXPECT_EQ(vocabulary.id("same"), 98U);
  EXPECT_EQ(vocabulary.token(4), "same");
}

TEST(WordCache, GivesBackWhatWasPutAndForgetsWhenFull) {
  WordCache cache;
  std::span<const Token> found;
  const auto word = [](int n) { return concat("a longer word, number ", n); };
  int hits = 0;
  for (int n = 0; n < 500'000; ++n) {  // several times what fits
    const Token token{static_cast<uint32_t>(n), 0, 1};
    const std::string text = word(n);
    cache.put(text, hash_bytes(text), {&token, 1});
    ASSERT_TRUE(cache.find(text, hash_bytes(text), &found));
    ASSERT_EQ(found.size(), 1U);
    ASSERT_EQ(found[0].id, static_cast<uint32_t>(n));
    const std::string old = word(n / 2);
    if (!cache.find(old, hash_bytes(old), &found)) continue;
    ++hits;
    ASSERT_EQ(found[0].id, static_cast<uint32_t>(n / 2));
  }
  EXPECT_GT(hits, 0);
  const std::string longest(WordCache::kLongestWord + 1, 'x');
  cache.put(longest, hash_bytes(longest), {});
  EXPECT_FALSE(cache.find(longest, hash_bytes(longest), &found));
}

}  // namespace
}  // namespace qkv::text
