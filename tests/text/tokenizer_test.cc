// SPDX-License-Identifier: Apache-2.0
// The public face: calls that a program makes, on a tokenizer small enough to follow by hand.
#include "qkv/text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "qkv/support/error.h"
#include "qkv/text/bpe_training.h"

namespace qkv {
namespace {

constexpr const char* kSmall = R"({
  "version": "1.0",
  "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": {"type": "Lowercase"},
  "pre_tokenizer": {"type": "Whitespace"},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"<s>": 0, "?": 1, "un": 2, "##able": 3, "##a": 4, "é": 5, ".": 6}}})";

Tokenizer small() { return Tokenizer::parse(kSmall, "small"); }

TEST(Tokenizer, EncodesWithOffsetsInCodePoints) {
  const Encoding encoding = small().encode("É Unable.");
  EXPECT_EQ(encoding.ids, (std::vector<uint32_t>{0, 5, 2, 3, 6}));
  EXPECT_EQ(encoding.offsets, (std::vector<TokenOffsets>{{0, 0}, {0, 1}, {2, 4}, {4, 8}, {8, 9}}));
}

TEST(Tokenizer, OptionsLeaveOutSpecialTokensAndOffsets) {
  const Encoding encoding = small().encode("una xyz", {.special_tokens = false, .offsets = false});
  EXPECT_EQ(encoding.ids, (std::vector<uint32_t>{2, 4, 1}));
  EXPECT_TRUE(encoding.offsets.empty());
}

TEST(Tokenizer, AWorkspaceServesManyTexts) {
  const Tokenizer tokenizer = small();
  TokenizerWorkspace workspace;
  Encoding encoding;
  for (int n = 0; n < 3; ++n) {
    tokenizer.encode("unable <s> é", {}, workspace, encoding);
    EXPECT_EQ(encoding.ids, (std::vector<uint32_t>{0, 2, 3, 0, 5}));
    tokenizer.encode("", {}, workspace, encoding);
    EXPECT_EQ(encoding.ids, (std::vector<uint32_t>{0}));
  }
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const Tokenizer tokenizer = small();
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      TokenizerWorkspace workspace;
      Encoding encoding;
      for (int k = 0; k < 200; ++k) {
        tokenizer.encode("un unable é una.", {}, workspace, encoding);
        EXPECT_EQ(encoding.ids, (std::vector<uint32_t>{0, 2, 2, 3, 5, 2, 4, 6}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, DecodesAndKnowsItsVocabulary) {
  const Tokenizer tokenizer = small();
  const std::vector<uint32_t> ids = {0, 2, 3, 6};
  EXPECT_EQ(tokenizer.decode(ids), "<s> unable.");
  EXPECT_EQ(tokenizer.decode(ids, false), "unable.");
  EXPECT_EQ(tokenizer.id("##able"), 3U);
  EXPECT_FALSE(tokenizer.id("able"));
  EXPECT_EQ(tokenizer.token(0), "<s>");
  EXPECT_FALSE(tokenizer.token(7));
  EXPECT_EQ(tokenizer.id_limit(), 7U);
  const std::vector<uint32_t> unknown = {9};
  EXPECT_THROW(tokenizer.decode(unknown), Error);
}

TEST(Tokenizer, RefusesInvalidTextAndMissingFiles) {
  try {
    small().encode("ab\xFF");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "text: byte 3 is not valid UTF-8");
  }
  EXPECT_THROW(Tokenizer::read("/nowhere/tokenizer.json"), SystemError);
  EXPECT_THROW(Tokenizer::parse("{}", "x"), Error);
}

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  BpeTrainer trainer;
  trainer.add("abab ab\nabc", "text");
  EXPECT_EQ(trainer.words(), 4);  // "abab", " ab", newline, "abc"
  trainer.train(259, {"<s>"});
  EXPECT_EQ(trainer.merges(), 2);
  const Tokenizer tokenizer = Tokenizer::parse(trainer.json(), "trained");
  EXPECT_EQ(tokenizer.token(257), "ab");
  EXPECT_EQ(tokenizer.token(258), "\u0120ab");  // of three pairs that come once, the one whose tokens are older
  EXPECT_EQ(tokenizer.encode("ababab ab").ids.size(), 4U);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("any tæxt 👍").ids), "any tæxt 👍");
  EXPECT_THROW(trainer.train(300, {}), Error);
}

TEST(BpeTrainer, OverlappingPairsAreCountedOnce) {
  BpeTrainer trainer;
  trainer.add("aaaaaaa", "text");
  trainer.train(300, {});
  const Tokenizer tokenizer = Tokenizer::parse(trainer.json(), "trained");
  EXPECT_EQ(tokenizer.encode("aaaaaaa").ids.size(), 1U);
  EXPECT_EQ(tokenizer.token(256), "aa");
}

}  // namespace
}  // namespace qkv
