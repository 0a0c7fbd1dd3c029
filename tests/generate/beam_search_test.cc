// SPDX-License-Identifier: Apache-2.0
// On models that are tables: the logits after a sequence are numbers drawn from its tokens.
#include "qkv/generate/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "qkv/generate/sampling.h"
#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv {
namespace {

using Tokens = std::vector<uint32_t>;

/// A model whose logits are a function of the sequence so far.
struct Table {
  uint64_t seed = 0;
  int64_t vocabulary = 5;

  std::vector<float> logits(const Tokens& tokens) const {
    uint64_t key = mix64(seed);
    for (const uint32_t token : tokens) key = mix64(key ^ token);
    test::Stream random(key);
    std::vector<float> row(static_cast<size_t>(vocabulary));
    for (float& logit : row) logit = static_cast<float>(2 * random.normal());
    return row;
  }

  /// Runs a search, keeping the beams' sequences as a cache would.
  BeamResult search(const BeamProblem& problem, const BeamOptions& options) const {
    const Tokens prompt(problem.prompt.begin(), problem.prompt.end());
    std::vector<Tokens> beams(static_cast<size_t>(options.beams), prompt);
    return beam_search(problem, options, logits(prompt), [&](const std::vector<int64_t>& from, auto tokens) {
      std::vector<Tokens> next;
      Tensor rows(DType::f32, {options.beams, vocabulary});
      auto* row = static_cast<float*>(rows.mutable_view().data());
      for (size_t b = 0; b < from.size(); ++b) {
        next.push_back(beams[static_cast<size_t>(from[b])]);
        next.back().push_back(tokens[b]);
        const std::vector<float> values = logits(next.back());
        row = std::copy(values.begin(), values.end(), row);
      }
      beams = next;
      return rows;
    });
  }

  double log_probability(const Tokens& prompt, const Tokens& tokens) const {
    Tokens so_far = prompt;
    double sum = 0;
    for (const uint32_t token : tokens) {
      const std::vector<float> row = logits(so_far);
      double total = 0;
      for (const float logit : row) total += std::exp(static_cast<double>(logit));
      sum += static_cast<double>(row[token]) - std::log(total);
      so_far.push_back(token);
    }
    return sum;
  }
};

/// Every sequence of new tokens that ends: with an end token, or at `length`.
void all_endings(int64_t vocabulary, uint32_t end, size_t length, Tokens& so_far, std::vector<Tokens>& found) {
  if (!so_far.empty() && (so_far.back() == end || so_far.size() == length)) {
    found.push_back(so_far);
    return;
  }
  for (int64_t token = 0; token < vocabulary; ++token) {
    so_far.push_back(static_cast<uint32_t>(token));
    all_endings(vocabulary, end, length, so_far, found);
    so_far.pop_back();
  }
}

TEST(BeamSearch, AsManyBeamsAsThereAreSequencesFindTheBestOfAll) {
  const LogitRules rules;
  const Tokens prompt{1, 2}, ends{3};
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Table table{seed, 4};
    // "never" does not stop while a longer beam could still win.
    const BeamOptions options{
        .beams = 64, .length_penalty = seed % 2 ? 1.0 : 0.5, .early_stopping = EarlyStopping::never};
    const BeamResult result = table.search({prompt, 5, ends, rules, {}}, options);
    std::vector<Tokens> endings;
    Tokens so_far;
    all_endings(4, 3, 3, so_far, endings);
    double best = -1e30;
    Tokens expected;
    for (const Tokens& tokens : endings) {
      const double score =
          table.log_probability(prompt, tokens) / std::pow(static_cast<double>(tokens.size()), options.length_penalty);
      if (score > best) {
        best = score;
        expected = tokens;
      }
    }
    EXPECT_EQ(result.tokens, expected) << seed;
    EXPECT_NEAR(result.score, best, 1e-5 * std::abs(best)) << seed;  // sums of three f32 terms
  }
}

TEST(BeamSearch, OneBeamIsGreedy) {
  const LogitRules rules;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Table table{seed, 7};
    const Tokens prompt{0}, ends{6};
    Tokens greedy, so_far = prompt;
    while (greedy.size() < 8 && (greedy.empty() || greedy.back() != 6)) {
      greedy.push_back(most_likely(table.logits(so_far)));
      so_far.push_back(greedy.back());
    }
    EXPECT_EQ(table.search({prompt, 9, ends, rules, {}}, {.beams = 1}).tokens, greedy) << seed;
  }
}

TEST(BeamSearch, ScoresAreLogProbabilitiesByLengthAndTokensEndWhereTheyShould) {
  const LogitRules rules;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Table table{seed, 9};
    const Tokens prompt{4}, ends{2, 5};
    for (const EarlyStopping early : {EarlyStopping::heuristic, EarlyStopping::full, EarlyStopping::never}) {
      const BeamResult result = table.search({prompt, 8, ends, rules, {}}, {.beams = 3, .early_stopping = early});
      ASSERT_FALSE(result.tokens.empty());
      const double expected = table.log_probability(prompt, result.tokens) / static_cast<double>(result.tokens.size());
      EXPECT_NEAR(result.score, expected, 1e-5 * std::abs(expected)) << seed;
      for (size_t n = 0; n + 1 < result.tokens.size(); ++n) {
        EXPECT_TRUE(result.tokens[n] != 2 && result.tokens[n] != 5);
      }
      EXPECT_TRUE(result.tokens.size() == 7 || result.tokens.back() == 2 || result.tokens.back() == 5);
    }
  }
}

TEST(BeamSearch, RulesForbidTokens) {
  LogitRules rules;
  rules.no_repeat_ngram_size = 1;
  rules.suppressed = {0};
  const Table table{3, 8};
  const Tokens prompt{4}, ends;
  const BeamResult result = table.search({prompt, 7, ends, rules, {}}, {.beams = 4});
  EXPECT_EQ(result.tokens.size(), 6u);
  Tokens sorted = result.tokens;
  sorted.push_back(4);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (Tokens{1, 2, 3, 4, 5, 6, 7}));
}

TEST(BeamSearch, ACallersStopEndsABeam) {
  const LogitRules rules;
  const Table table{8, 6};
  const Tokens prompt{1}, ends;
  const auto stops = [](std::span<const uint32_t> tokens) { return tokens.back() == 3; };
  const Tokens end{3};
  // An end token at the same place, but for how many continuations are looked at: with one, and with none.
  EXPECT_EQ(table.search({prompt, 9, ends, rules, stops}, {.beams = 3}).tokens,
            table.search({prompt, 9, end, rules, {}}, {.beams = 3}).tokens);
}

TEST(BeamSearch, ATinyVocabularyHasFewerContinuationsThanAreLookedAt) {
  const LogitRules rules;
  const Table table{2, 1};
  const Tokens prompt{0}, ends;
  EXPECT_EQ(table.search({prompt, 4, ends, rules, {}}, {.beams = 2}).tokens, (Tokens{0, 0, 0}));
}

TEST(BeamSearch, NoTokenLeftIsRefusedUnlessABeamHasFinished) {
  LogitRules rules;
  rules.suppressed = {0, 1, 2, 3, 4};
  const Table table{4, 5};
  const Tokens prompt{1}, ends, end{3};
  EXPECT_THROW(table.search({prompt, 9, ends, rules, {}}, {.beams = 3}), Error);
  rules.suppressed = {};
  rules.no_repeat_ngram_size = 1;  // four tokens, then none
  EXPECT_THROW(table.search({prompt, 9, ends, rules, {}}, {.beams = 3}), Error);
  EXPECT_EQ(
      table.search({prompt, 9, end, rules, {}}, {.beams = 3, .early_stopping = EarlyStopping::never}).tokens.back(),
      3U);
}

TEST(BeamSearch, NaNAndNoBeamsAreRefused) {
  const LogitRules rules;
  const Tokens prompt{0}, ends;
  const std::vector<float> row{0, std::nanf("")};
  EXPECT_THROW(beam_search({prompt, 4, ends, rules, {}}, {.beams = 2}, row, {}), Error);
  EXPECT_THROW(beam_search({prompt, 4, ends, rules, {}}, {.beams = 0}, row, {}), Error);
}

}  // namespace
}  // namespace qkv
