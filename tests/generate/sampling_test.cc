// SPDX-License-Identifier: Apache-2.0
#include "qkv/generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGone = -kInfinity;
using Row = std::vector<float>;

/// Logits whose probabilities are these.
Row logits_of(const std::vector<double>& probabilities) {
  Row logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// The ids that are left.
std::vector<size_t> kept(const Row& logits) {
  std::vector<size_t> ids;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] != kGone) ids.push_back(id);
  }
  return ids;
}

TEST(Sampling, TopKKeepsWhatEqualsTheLastOne) {
  Row logits{1, 3, 2, 3, 2, 2};
  keep_top_k(3, logits);
  EXPECT_EQ(logits, (Row{kGone, 3, 2, 3, 2, 2}));
  keep_top_k(2, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{1, 3}));
  keep_top_k(100, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{1, 3}));
}

TEST(Sampling, TopPLeavesOutTheTailThatHoldsTheRest) {
  Row logits = logits_of({0.1, 0.5, 0.15, 0.25});
  keep_top_p(0.74, logits);  // 0.5 + 0.25 reach it
  EXPECT_EQ(kept(logits), (std::vector<size_t>{1, 3}));
  logits = logits_of({0.1, 0.5, 0.15, 0.25});
  keep_top_p(0.76, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{1, 2, 3}));
}

TEST(Sampling, TopPOfNothingKeepsTheMostProbableAndOfEqualOnesTheHighestId) {
  Row logits{2, 5, 5, 1};
  keep_top_p(0, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{2}));
  Row alone{7};
  keep_top_p(0, alone);
  EXPECT_EQ(alone, Row{7});
}

TEST(Sampling, MinPIsRelativeToTheMostProbable) {
  Row logits = logits_of({0.5, 0.26, 0.24});
  keep_min_p(0.5, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{0, 1}));
  logits = {4, 4, 3};
  keep_min_p(1, logits);
  EXPECT_EQ(kept(logits), (std::vector<size_t>{0, 1}));
}

TEST(Sampling, TemperatureLeavesWhatIsGoneGone) {
  Row logits{2, kGone, -4};
  apply_temperature(0.5, logits);
  EXPECT_EQ(logits, (Row{4, kGone, -8}));
  apply_temperature(1e300, logits);
  EXPECT_EQ(logits, (Row{0, kGone, -0.0f}));
}

TEST(Sampling, GreedyTakesTheLowestOfEqualIds) {
  EXPECT_EQ(most_likely(Row{1, 4, 4, 2}), 1u);
  EXPECT_EQ(most_likely(Row{kGone, kGone, -3}), 2u);
  EXPECT_EQ(most_likely(Row{1, kInfinity}), 1u);
}

TEST(Sampling, NothingToChooseFromIsAnError) {
  EXPECT_THROW(most_likely(Row{}), Error);
  EXPECT_THROW(most_likely(Row{kGone, kGone}), Error);
  EXPECT_THROW(most_likely(Row{1, std::nanf("")}), Error);
}

TEST(Sampling, OptionsOutsideTheirRangesAreRefused) {
  EXPECT_NO_THROW(check_sampling({}));
  EXPECT_NO_THROW(check_sampling({.temperature = 3, .top_k = 1, .top_p = 0, .min_p = 1}));
  EXPECT_THROW(check_sampling({.temperature = -0.1}), Error);
  EXPECT_THROW(check_sampling({.temperature = kInfinity}), Error);
  EXPECT_THROW(check_sampling({.top_k = -1}), Error);
  EXPECT_THROW(check_sampling({.top_p = 1.01}), Error);
  EXPECT_THROW(check_sampling({.min_p = std::nan("")}), Error);
}

TEST(Sampling, ATemperatureTooSmallForTheRangeOfF32IsGreedy) {
  Row logits{1, 2, -3};
  EXPECT_EQ(sample({.temperature = 1e-44}, 0, 0, logits), 1u);
}

TEST(Sampling, WhatFiltersLeaveOutIsNeverDrawn) {
  for (uint64_t step = 0; step < 500; ++step) {
    Row logits = logits_of({0.1, 0.4, 0.2, 0.3});
    const uint32_t id = sample({.temperature = 1, .top_k = 2, .seed = 5}, 0, step, logits);
    EXPECT_TRUE(id == 1 || id == 3);
  }
}

TEST(Sampling, DrawsFollowTheProbabilities) {
  const std::vector<double> probabilities{0.1, 0.4, 0.2, 0.3};
  const double n = 20000;
  std::vector<double> counts(4);
  for (uint64_t step = 0; step < static_cast<uint64_t>(n); ++step) {
    Row logits = logits_of(probabilities);
    ++counts[sample({.temperature = 1, .seed = 11}, 3, step, logits)];
  }
  for (size_t id = 0; id < 4; ++id) {
    const double p = probabilities[id], deviation = std::sqrt(n * p * (1 - p));
    EXPECT_NEAR(counts[id], n * p, 5 * deviation) << id;
  }
}

TEST(Sampling, TheDrawIsTheLowestIdWhoseCumulativeProbabilityPassesIt) {
  const std::vector<double> probabilities{0.25, 0.25, 0.5};
  for (uint64_t step = 0; step < 200; ++step) {
    const double u = uniform_draw(9, 4, step);
    ASSERT_TRUE(u >= 0 && u < 1);
    if (std::abs(u - 0.25) < 1e-6 || std::abs(u - 0.5) < 1e-6) continue;  // logits are rounded to f32
    Row logits = logits_of(probabilities);
    const uint32_t expected = u < 0.25 ? 0 : u < 0.5 ? 1 : 2;
    EXPECT_EQ(sample({.temperature = 1, .seed = 9}, 4, step, logits), expected);
  }
}

TEST(Sampling, SeedSequenceAndStepEachChangeTheDraw) {
  std::vector<double> draws;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (uint64_t sequence = 0; sequence < 4; ++sequence) {
      for (uint64_t step = 0; step < 4; ++step) draws.push_back(uniform_draw(seed, sequence, step));
    }
  }
  std::sort(draws.begin(), draws.end());
  EXPECT_EQ(std::unique(draws.begin(), draws.end()), draws.end());
}

}  // namespace
}  // namespace qkv
