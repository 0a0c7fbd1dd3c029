// SPDX-License-Identifier: Apache-2.0
// Whatever comes in whatever order, pieces are whole characters and add up to what decode gives for all ids at once.
#include "qkv/text/text_stream.h"

#include <gtest/gtest.h>

#include "random_stream.h"
#include "text/utf8.h"

namespace qkv {
namespace {

/// A tokenizer with this decoder, whose ids are the places in `vocabulary`; id 0 is special.
Tokenizer with_decoder(const std::string& decoder, const std::vector<std::string>& vocabulary) {
  std::string entries;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    entries += (id > 0 ? ", " : "") + ("\"" + vocabulary[id]) + "\": " + std::to_string(id);
  }
  const std::string json = R"({"version": "1.0", "added_tokens": [{"id": 0, "content": ")" + vocabulary[0] +
                           R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
      "special": true}], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": )" +
                           decoder + R"(, "model": {"type": "WordLevel", "unk_token": ")" + vocabulary[0] +
                           R"(", "vocab": {)" + entries + "}}}";
  return Tokenizer::parse(json, "test");
}

constexpr const char* kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
constexpr const char* kLlama = R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
constexpr const char* kMetaspace =
    R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})";
constexpr const char* kWordPiece = R"({"type": "WordPiece", "prefix": "##", "cleanup": true})";

// In byte-level vocabularies â, Ĥ and ¬ are the bytes E2, 82 and AC, which make the sign of the euro; ð is F0.
const std::vector<std::string> kByteTokens = {"<s>", "a", "Ġb", "â", "Ĥ", "¬", "âĤ", "Ĥ¬", "ð", "ï¿½", "¬âĤ¬", "Ġ"};
const std::vector<std::string> kFallbackTokens = {"<s>",    "▁a",     "b",  "▁", "<0xE2>", "<0x82>",
                                                  "<0xAC>", "<0x0A>", "▁▁", "é", "<0xF0>", "�"};
const std::vector<std::string> kWordTokens = {"[PAD]", "a", "##b", ".", "'", "n't", "é", "##", "do"};

struct Case {
  const char* name;
  const char* decoder;
  const std::vector<std::string>* vocabulary;
};

class Decoders : public testing::TestWithParam<Case> {};

TEST_P(Decoders, PiecesOfRandomTokensAddUpToTheirTextAndAreWholeCharacters) {
  const Tokenizer tokenizer = with_decoder(GetParam().decoder, *GetParam().vocabulary);
  const auto tokens = static_cast<int64_t>(GetParam().vocabulary->size());
  test::Stream random(7);
  for (int round = 0; round < 500; ++round) {
    const bool special = random.chance(0.5);
    TextStream stream(tokenizer, special);
    std::vector<uint32_t> ids;
    std::string text;
    for (int64_t n = random.integer(0, 24); n > 0; --n) {
      ids.push_back(static_cast<uint32_t>(random.integer(0, tokens - 1)));
      const std::string piece = stream.add(ids.back());
      EXPECT_EQ(text::utf8_first_invalid(piece), std::string::npos);
      text += piece;
    }
    text += stream.finish();
    ASSERT_EQ(text, tokenizer.decode(ids, special)) << testing::PrintToString(ids);
  }
}

INSTANTIATE_TEST_SUITE_P(, Decoders,
                         testing::Values(Case{"ByteLevel", kByteLevel, &kByteTokens},
                                         Case{"Llama", kLlama, &kFallbackTokens},
                                         Case{"Metaspace", kMetaspace, &kFallbackTokens},
                                         Case{"WordPiece", kWordPiece, &kWordTokens},
                                         Case{"None", "null", &kWordTokens}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TextStream, ACharacterInSeveralByteLevelTokensComesWithTheLastOfThem) {
  const Tokenizer tokenizer = with_decoder(kByteLevel, kByteTokens);
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(1), "a");
  EXPECT_EQ(stream.add(3), "");
  EXPECT_EQ(stream.add(4), "");
  EXPECT_EQ(stream.add(5), "€");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, ABrokenCharacterIsGivenWhenTheNextTokenDoesNotContinueIt) {
  const Tokenizer tokenizer = with_decoder(kByteLevel, kByteTokens);
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(6), "");
  EXPECT_EQ(stream.add(2), "\xEF\xBF\xBD b");
  EXPECT_EQ(stream.add(8), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(TextStream, ARunOfByteTokensIsGivenWhenItHasEnded) {
  const Tokenizer tokenizer = with_decoder(kLlama, kFallbackTokens);
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(1), "a");
  for (const uint32_t id : {4u, 5u, 6u}) EXPECT_EQ(stream.add(id), "");
  EXPECT_EQ(stream.add(2), "€b");
  EXPECT_EQ(stream.add(1), " a");
}

TEST(TextStream, OnlyTheFirstTokenOfAllLosesItsBlank) {
  const Tokenizer tokenizer = with_decoder(kLlama, kFallbackTokens);
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(3), "");
  EXPECT_EQ(stream.add(1), " a");
  EXPECT_EQ(stream.add(0), "");
  EXPECT_EQ(stream.add(1), " a");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.add(1), "a");
}

}  // namespace
}  // namespace qkv
