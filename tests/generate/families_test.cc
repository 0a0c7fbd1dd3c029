// SPDX-License-Identifier: Apache-2.0
// Every family that generates, with random weights: greedy tokens are those of whole passes, and neither the batch nor
// a draft nor the number of threads changes one, drawn or not.
#include <gtest/gtest.h>

#include "qkv/generate/generate.h"
#include "qkv/support/error.h"
#include "random_stream.h"
#include "tiny_models.h"

namespace qkv {
namespace {

using test::TinyModel;
using Tokens = std::vector<uint32_t>;

std::vector<TinyModel> generators() {
  std::vector<TinyModel> models;
  for (const TinyModel& model : test::tiny_models()) {
    if (model.config().has_decoder()) models.push_back(model);
  }
  return models;
}

class Families : public testing::TestWithParam<TinyModel> {
 protected:
  Transformer model(uint64_t seed, const TransformerOptions& options = {}) const {
    return Transformer::random(GetParam().config(), seed, options);
  }

  std::vector<Tokens> prompts() const {
    test::Stream random(3);
    std::vector<Tokens> prompts;
    for (const int64_t length : {1, 7, 20, 3}) {
      Tokens prompt;
      for (int64_t n = 0; n < length; ++n) prompt.push_back(static_cast<uint32_t>(random.integer(3, 60)));
      prompts.push_back(prompt);
    }
    prompts.push_back(prompts[2]);  // shares its beginning, and goes on otherwise
    prompts.back().back() = 5;
    prompts.push_back(prompts[1]);  // a copy
    return prompts;
  }

  GenerateOptions options(double temperature = 0) const {
    GenerateOptions options{.max_tokens = 9, .sampling = {.temperature = temperature, .seed = 8}, .end_tokens = {2}};
    options.decoder_start_token = 1;
    return options;
  }

  static std::vector<Tokens> tokens_of(const std::vector<Generation>& results) {
    std::vector<Tokens> tokens;
    for (const Generation& result : results) tokens.push_back(result.tokens);
    return tokens;
  }
};

TEST_P(Families, GreedyTokensAreThoseOfWholePasses) {
  const Transformer transformer = model(1);
  const bool both = transformer.config().has_encoder();
  for (const Tokens& prompt : prompts()) {
    Tokens expected, so_far = both ? Tokens{1} : prompt;
    while (expected.size() < 9 && (expected.empty() || expected.back() != 2)) {
      const Tensor logits =
          both ? transformer.logits({.tokens = prompt}, {.tokens = so_far}) : transformer.logits({.tokens = so_far});
      const int64_t rows = logits.shape()[0], width = logits.shape()[1];
      const auto* last = static_cast<const float*>(logits.view().data()) + (rows - 1) * width;
      expected.push_back(most_likely({last, static_cast<size_t>(width)}));
      so_far.push_back(expected.back());
    }
    EXPECT_EQ(generate(transformer, {prompt}, options())[0].tokens, expected);
  }
}

TEST_P(Families, ABatchIsWhatEachPromptIsAlone) {
  const Transformer transformer = model(1), serial = model(1, {.threads = 1});
  for (const double temperature : {0.0, 1.2}) {
    const auto batch = tokens_of(generate(transformer, prompts(), options(temperature)));
    EXPECT_EQ(tokens_of(generate(serial, prompts(), options(temperature))), batch);
    for (size_t n = 0; n + 1 < prompts().size(); ++n) {  // the last is a copy, with draws of its own
      EXPECT_EQ(generate(transformer, {prompts()[n]}, options(temperature))[0].tokens, batch[n]) << n;
    }
  }
  GenerateOptions beams = options();
  beams.beams.beams = 3;
  const auto batch = tokens_of(generate(transformer, prompts(), beams));
  for (size_t n = 0; n < prompts().size(); ++n) {
    EXPECT_EQ(generate(serial, {prompts()[n]}, beams)[0].tokens, batch[n]) << n;
  }
}

TEST_P(Families, ADraftChangesNoToken) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // One that is always right, and one that seldom is.
    const Transformer transformer = model(1, {.dtype = dtype}), other = model(2, {.dtype = dtype});
    for (const double temperature : {0.0, 1.2}) {
      const auto expected = tokens_of(generate(transformer, prompts(), options(temperature)));
      for (const Transformer* draft : {&transformer, &other}) {
        EXPECT_EQ(tokens_of(generate(transformer, prompts(), options(temperature), draft)), expected);
      }
    }
  }
}

TEST(Generate, ADraftWithoutRoomForThePromptsIsLeftOut) {
  const ModelConfig config = test::tiny_model("bart").config();
  ModelConfig narrow = config;
  narrow.positions = 4;
  const Transformer model = Transformer::random(config, 1), draft = Transformer::random(narrow, 1);
  const std::vector<Tokens> prompts{{5, 6, 7, 8, 9}, {4}};
  const GenerateOptions options{.max_tokens = 3, .decoder_start_token = 1};
  const auto expected = generate(model, prompts, options), got = generate(model, prompts, options, &draft);
  for (size_t n = 0; n < prompts.size(); ++n) EXPECT_EQ(got[n].tokens, expected[n].tokens);
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(generators()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(Generate, RefusesWhatDoesNotFit) {
  const Transformer gpt2 = Transformer::random(test::tiny_model("gpt2").config(), 1);
  const auto message = [&](const Transformer& model, const std::vector<Tokens>& prompts, GenerateOptions options,
                           const Transformer* draft = nullptr) {
    options.max_tokens = 3;
    try {
      generate(model, prompts, options, draft);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(gpt2, {{5}}, {}), "");
  EXPECT_EQ(message(gpt2, {}, {}), "");
  EXPECT_EQ(message(gpt2, {{5}, {}}, {}), "generate: prompt 1 has no tokens");
  EXPECT_EQ(message(gpt2, {{5, 61}}, {}), "generate: prompt 0: token 61 is not in the vocabulary of 61");
  EXPECT_EQ(message(gpt2, {{5}}, {.end_tokens = {61}}), "generate: end token 61 is not in the vocabulary of 61");
  EXPECT_EQ(message(gpt2, {{5}}, {.beams = {.beams = 2}}, &gpt2), "generate: beams and a draft exclude each other");
  EXPECT_EQ(message(gpt2, {{5}}, {.sampling = {.temperature = 1}, .beams = {.beams = 2}}),
            "generate: beams and a temperature exclude each other");
  EXPECT_EQ(message(gpt2, {{5}}, {.draft_tokens = 0}), "generate: draft_tokens: expected at least 1, got 0");
  const Transformer bert = Transformer::random(test::tiny_model("bert").config(), 1);
  EXPECT_EQ(message(bert, {{5}}, {}), "generate: bert is an encoder and generates nothing");
  const Transformer t5 = Transformer::random(test::tiny_model("t5").config(), 1);
  EXPECT_EQ(message(t5, {{5}}, {}), "generate: t5 needs a token that its decoder starts with");
  EXPECT_EQ(message(gpt2, {{5}}, {}, &t5),
            "generate: the draft is of the kind encoder-decoder, the model of the kind decoder");
}

}  // namespace
}  // namespace qkv
