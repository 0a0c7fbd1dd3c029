// SPDX-License-Identifier: Apache-2.0
// The loop on models that are tables: what it feeds them, and that nothing but the prompt decides what comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "generate/table_model.h"
#include "qkv/generate/generate.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

using test::TableModel;
using test::TableSequences;
using Tokens = std::vector<uint32_t>;
using Prompts = std::vector<Tokens>;

std::vector<uint64_t> no_draws(size_t count) { return std::vector<uint64_t>(count, 0); }

std::vector<Tokens> tokens_of(const std::vector<Generation>& results) {
  std::vector<Tokens> tokens;
  for (const Generation& result : results) tokens.push_back(result.tokens);
  return tokens;
}

/// The tokens by the definition: every logit from the whole sequence.
Tokens plain(const TableModel& model, const Tokens& prompt, const GenerateOptions& options, uint64_t draws = 0) {
  Tokens so_far = prompt;
  for (int64_t n = 0; n < options.max_tokens; ++n) {
    std::vector<float> row = model.logits(so_far);
    const auto length = static_cast<int64_t>(prompt.size());
    apply_rules(options.rules, {so_far, length, length + options.max_tokens}, options.end_tokens, row);
    so_far.push_back(sample(options.sampling, draws, static_cast<uint64_t>(n), row));
    const auto& ends = options.end_tokens;
    if (std::find(ends.begin(), ends.end(), so_far.back()) != ends.end()) break;
  }
  return Tokens(so_far.begin() + static_cast<ptrdiff_t>(prompt.size()), so_far.end());
}

Prompts random_prompts(uint64_t seed, int64_t vocabulary) {
  test::Stream random(seed);
  Prompts prompts;
  for (int64_t n = random.integer(1, 6); n > 0; --n) {
    Tokens prompt;
    // Some begin as the one before, and are long enough to share that.
    if (!prompts.empty() && random.chance(0.5)) {
      prompt.assign(prompts.back().begin(),
                    prompts.back().begin() + random.integer(0, static_cast<int64_t>(prompts.back().size())));
    }
    for (int64_t more = random.integer(prompt.empty() ? 1 : 0, 40); more > 0; --more) {
      prompt.push_back(static_cast<uint32_t>(random.integer(0, vocabulary - 1)));
    }
    prompts.push_back(prompt);
  }
  return prompts;
}

TEST(ContinuePrompts, ARaggedBatchIsWhatEachPromptIsAlone) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const TableModel model{seed, 6};
    const Prompts prompts = random_prompts(seed, 6);
    GenerateOptions options{.max_tokens = 12, .end_tokens = {2}};
    if (seed % 2) options.sampling = {.temperature = 0.8, .top_k = 4, .top_p = 0.95, .min_p = 0.01, .seed = seed};
    if (seed % 3 == 0) options.rules.repetition_penalty = 1.3;
    TableSequences sequences(model, prompts.size());
    const auto results = continue_prompts(sequences, nullptr, prompts, no_draws(prompts.size()), options);
    for (size_t n = 0; n < prompts.size(); ++n) {
      EXPECT_EQ(results[n].tokens, plain(model, prompts[n], options)) << seed << " prompt " << n;
      EXPECT_EQ(results[n].finish == Finish::end, results[n].tokens.back() == 2);
    }
  }
}

TEST(ContinuePrompts, ADraftChangesNoToken) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const TableModel model{0, 7}, draft{seed + 1, 7, static_cast<double>(seed % 3) * 0.45};
    const Prompts prompts = random_prompts(seed, 7);
    GenerateOptions options{.max_tokens = 15, .end_tokens = {3}, .draft_tokens = static_cast<int64_t>(1 + seed % 5)};
    if (seed % 2) options.sampling = {.temperature = 1.1, .seed = seed};
    if (seed % 5 == 0) options.rules.no_repeat_ngram_size = 4;
    TableSequences sequences(model, prompts.size()), drafts(draft, prompts.size());
    const auto results = continue_prompts(sequences, &drafts, prompts, no_draws(prompts.size()), options);
    for (size_t n = 0; n < prompts.size(); ++n) {
      EXPECT_EQ(results[n].tokens, plain(model, prompts[n], options)) << seed << " prompt " << n;
    }
  }
}

TEST(ContinuePrompts, ADraftThatHasNoTokenLeftProposesNone) {
  struct Broken : TableSequences {
    using TableSequences::TableSequences;
    Tensor decode(const TokenBatch& batch, LogitRows rows) override {
      Tensor logits = TableSequences::decode(batch, rows);
      auto* values = static_cast<float*>(logits.mutable_view().data());
      for (int64_t n = 0; n < logits.view().elements(); ++n) values[n] = std::nanf("");
      return logits;
    }
  };
  const TableModel model{0, 7};
  const GenerateOptions options{.max_tokens = 8};
  TableSequences sequences(model, 1);
  Broken drafts(model, 1);
  const auto results = continue_prompts(sequences, &drafts, {{1, 2, 3}}, {0}, options);
  EXPECT_EQ(results[0].tokens, plain(model, {1, 2, 3}, options));
}

TEST(ContinuePrompts, ADraftThatIsAlwaysRightSavesPasses) {
  const TableModel model{4, 50};
  const GenerateOptions options{.max_tokens = 21, .draft_tokens = 4};
  TableSequences sequences(model, 1), drafts(model, 1);
  const auto results = continue_prompts(sequences, &drafts, {{1, 2, 3}}, {0}, options);
  EXPECT_EQ(results[0].tokens, plain(model, {1, 2, 3}, options));
  EXPECT_EQ(sequences.passes, 1 + 20 / 5);  // the first reads the prompt, every other one gives five tokens
}

TEST(ContinuePrompts, ADraftWithFewerPositionsIsNotAskedBeyondThem) {
  const TableModel model{4, 9};
  const GenerateOptions options{.max_tokens = 10};
  TableSequences sequences(model, 2), drafts(model, 2, 13);
  const Prompts prompts{{1, 2, 3}, {4, 5, 6, 7}};
  const auto results = continue_prompts(sequences, &drafts, prompts, {0, 0}, options);
  for (size_t n = 0; n < 2; ++n) EXPECT_EQ(results[n].tokens, plain(model, prompts[n], options));
}

TEST(ContinuePrompts, AnyNumberOfTokensMayBeWanted) {
  const TableModel model{4, 9};
  TableSequences sequences(model, 1, 13);
  const auto results =
      continue_prompts(sequences, nullptr, {{1, 2, 3}}, {0}, {.max_tokens = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(results[0].tokens, plain(model, {1, 2, 3}, {.max_tokens = 10}));
}

TEST(ContinuePrompts, ACommonBeginningIsReadOnce) {
  const TableModel model{1, 9};
  Tokens beginning(200);
  test::Stream random(2);
  for (uint32_t& token : beginning) token = static_cast<uint32_t>(random.integer(0, 8));
  Prompts prompts;
  for (uint32_t n = 0; n < 4; ++n) {
    prompts.push_back(beginning);
    prompts.back().push_back(n);
  }
  prompts.push_back(beginning);  // shorter than the one it takes from
  const GenerateOptions options{.max_tokens = 3};
  TableSequences sequences(model, prompts.size());
  const auto results = continue_prompts(sequences, nullptr, prompts, no_draws(5), options);
  for (size_t n = 0; n < prompts.size(); ++n) EXPECT_EQ(results[n].tokens, plain(model, prompts[n], options));
  EXPECT_EQ(sequences.fed, 200 + 5 * 3);  // each ends with a token of its own, then two that came
}

TEST(ContinuePrompts, ProgressCountsTheTokensOfLongPrompts) {
  const TableModel model{1, 9};
  std::vector<int64_t> done;
  GenerateOptions options{.max_tokens = 1};
  options.on_prompt = [&](int64_t tokens, int64_t total) {
    EXPECT_EQ(total, 1300);
    done.push_back(tokens);
  };
  TableSequences sequences(model, 1);
  continue_prompts(sequences, nullptr, {Tokens(1300, 4)}, {0}, options);
  EXPECT_EQ(done, (std::vector<int64_t>{512, 1024, 1299}));
  done.clear();
  TableSequences again(model, 1);
  continue_prompts(again, nullptr, {Tokens(512, 4)}, {0}, options);
  EXPECT_TRUE(done.empty());
}

TEST(ContinuePrompts, ItStopsAtTheEndOfAPositionTable) {
  const TableModel model{6, 9};
  TableSequences sequences(model, 3, 5);
  const Prompts prompts{{1, 2, 3}, {1, 2, 3, 4, 5}, {7}};
  const auto results = continue_prompts(sequences, nullptr, prompts, no_draws(3), {.max_tokens = 9});
  EXPECT_EQ(results[0].tokens.size(), 2u);
  EXPECT_EQ(results[1].tokens.size(), 0u);
  EXPECT_EQ(results[2].tokens.size(), 4u);
  for (const Generation& result : results) EXPECT_EQ(result.finish, Finish::length);
}

TEST(ContinuePrompts, ACallerMayStopOneSequence) {
  const TableModel model{6, 9};
  GenerateOptions options{.max_tokens = 9};
  std::vector<Tokens> seen(2);
  options.on_token = [&](int64_t sequence, uint32_t token) {
    seen[static_cast<size_t>(sequence)].push_back(token);
    return sequence == 1 || seen[0].size() < 4;
  };
  TableSequences sequences(model, 2);
  const auto results = continue_prompts(sequences, nullptr, {{1, 2, 3}, {5}}, {0, 0}, options);
  EXPECT_EQ(results[0].tokens.size(), 4u);
  EXPECT_EQ(results[0].finish, Finish::stop);
  EXPECT_EQ(results[1].tokens.size(), 9u);
  EXPECT_EQ(results[1].finish, Finish::length);
  EXPECT_EQ(tokens_of(results), seen);
}

TEST(ContinuePrompts, CopiesOfAPromptHaveDrawsOfTheirOwn) {
  const TableModel model{3, 40};
  const GenerateOptions options{.max_tokens = 20, .sampling = {.temperature = 1, .seed = 4}};
  TableSequences sequences(model, 3);
  const auto results = tokens_of(continue_prompts(sequences, nullptr, {{1}, {1}, {1}}, {0, 1, 0}, options));
  EXPECT_NE(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], plain(model, {1}, options, 1));
}

TEST(ContinuePrompts, NothingToDoGivesNothing) {
  const TableModel model{3, 4};
  TableSequences none(model, 0), some(model, 1);
  EXPECT_TRUE(continue_prompts(none, nullptr, {}, {}, {.max_tokens = 5}).empty());
  EXPECT_TRUE(continue_prompts(some, nullptr, {{1}}, {0}, {.max_tokens = 0})[0].tokens.empty());
  EXPECT_EQ(some.passes, 0);
  EXPECT_THROW(continue_prompts(some, nullptr, {{}}, {0}, {.max_tokens = 5}), Error);
}

TEST(ContinuePrompts, BeamsThroughACacheAreThoseOfWholeSequences) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const TableModel model{seed, 8};
    GenerateOptions options{.max_tokens = 7, .end_tokens = {1, 4}};
    options.beams.beams = 1 + static_cast<int64_t>(seed % 4);
    const Tokens prompt{3, 2, 5};
    TableSequences sequences(model, 1);
    const Generation result = continue_with_beams(sequences, prompt, options);
    // Every beam anew from its whole sequence.
    std::vector<Tokens> beams(static_cast<size_t>(options.beams.beams), prompt);
    const BeamResult expected =
        beam_search({prompt, 10, options.end_tokens, options.rules, {}}, options.beams, model.logits(prompt),
                    [&](const std::vector<int64_t>& from, std::span<const uint32_t> tokens) {
                      std::vector<Tokens> next;
                      Tensor rows(DType::f32, {options.beams.beams, 8});
                      auto* row = static_cast<float*>(rows.mutable_view().data());
                      for (size_t b = 0; b < from.size(); ++b) {
                        next.push_back(beams[static_cast<size_t>(from[b])]);
                        next.back().push_back(tokens[b]);
                        const std::vector<float> logits = model.logits(next.back());
                        row = std::copy(logits.begin(), logits.end(), row);
                      }
                      beams = next;
                      return rows;
                    });
    EXPECT_EQ(result.tokens, expected.tokens);
    const bool ended = result.tokens.back() == 1 || result.tokens.back() == 4;
    EXPECT_EQ(result.finish, ended ? Finish::end : Finish::length);
  }
}

}  // namespace
}  // namespace qkv
