// SPDX-License-Identifier: Apache-2.0
//
// Forward mode: promise 3 on random and ill-conditioned problems, on every instruction set; what it owes the backward.
#include <gtest/gtest.h>

#include <cmath>

#include "derivatives.h"
#include "qkv/attention/accuracy.h"
#include "qkv/support/random.h"

namespace qkv::test {
namespace {

void expect_accurate(const TestProblem& problem, const Directions& directions) {
  for_each_target([&](const std::string& target) {
    const AttentionJvpReference results = run_jvp(problem, directions, {.threads = problem.spec.threads});
    for (const AccuracyComparison& comparison :
         attention_jvp_accuracy(problem.q, problem.k, problem.v, problem.options, directions.tangents, results)) {
      EXPECT_TRUE(comparison.holds()) << name(problem.spec) << "/" << target << ": " << comparison.text();
    }
  });
}

/// Every tangent, or some of them.
uint32_t moving(uint64_t seed) {
  return seed % 2 == 0 ? uint32_t{kMoveAll} : static_cast<uint32_t>(mix64(seed)) & kMoveAll;
}

void sweep(uint64_t first, uint64_t last, int64_t largest) {
  for (uint64_t seed = first; seed < last; ++seed) {
    const TestProblem problem(random_spec(seed, largest));
    expect_accurate(problem, Directions(problem, seed, moving(seed)));
  }
}

class EachFeatureJvp : public testing::TestWithParam<Spec> {};

TEST_P(EachFeatureJvp, is_accurate) {
  const TestProblem problem(GetParam());
  expect_accurate(problem, Directions(problem, 1));
}

std::string test_name(const testing::TestParamInfo<Spec>& info) { return name(info.param); }

std::vector<Spec> features(DType dtype) {
  return each_feature_alone(
      {.seed = 3, .dtype = dtype, .B = 2, .H = 2, .Hkv = 1, .Tq = 67, .Tk = 135, .D = 24, .Dv = 40});
}

INSTANTIATE_TEST_SUITE_P(f32, EachFeatureJvp, testing::ValuesIn(features(DType::f32)), test_name);
INSTANTIATE_TEST_SUITE_P(f64, EachFeatureJvp, testing::ValuesIn(features(DType::f64)), test_name);
INSTANTIATE_TEST_SUITE_P(bf16, EachFeatureJvp, testing::ValuesIn(features(DType::bf16)), test_name);
INSTANTIATE_TEST_SUITE_P(f16, EachFeatureJvp, testing::ValuesIn(features(DType::f16)), test_name);

TEST(jvp, is_accurate_on_random_problems) { sweep(1, 250, 130); }
TEST(jvp, is_accurate_on_random_problems_of_several_blocks) { sweep(10'000, 10'020, 1100); }
TEST(LongJvp, is_accurate_on_random_problems) { sweep(20'000, 24'000, 130); }
TEST(LongJvp, is_accurate_on_random_problems_of_several_blocks) { sweep(30'000, 30'300, 1100); }

// A row whose weight lies far from its first key, under a slope whose tangent makes that key's score move most: a mean
// taken from the first keys would leave differences of thousands to cancel in the products.
TEST(jvp, is_accurate_where_the_first_keys_weigh_nothing) {
  const TestProblem problem(
      {.seed = 4, .H = 2, .Hkv = 2, .Tq = 40, .Tk = 2000, .D = 16, .Dv = 16, .features = kSlopes | kCausalBottomRight});
  expect_accurate(problem, Directions(problem, 3));
}

/// <u, J t> = <J^T u, t> in f64, up to rounding.
TEST(jvp, is_adjoint_to_the_backward) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    Spec spec = random_spec(60'000 + seed, 200);
    spec.dtype = DType::f64;
    spec.values = Values::normal;
    spec.features |= kDLse;
    const TestProblem problem(spec);
    const bool rounds_bias = problem.options.bias && problem.options.bias.dtype() != DType::f64;  // and its gradient
    const Directions directions(problem, seed, rounds_bias ? kMoveAll & ~uint32_t{kMoveBias} : kMoveAll);
    const AttentionTangents& t = directions.tangents;
    for_each_target([&](const std::string& target) {
      const AttentionJvpReference moved = run_jvp(problem, directions);
      const AttentionReference pulled = run_operation(problem);
      const double forward = inner(problem.d_out, moved.t_out.view()) + inner(problem.d_lse, moved.t_lse.view());
      const double backward = inner(pulled.d_q.view(), t.q) + inner(pulled.d_k.view(), t.k) +
                              inner(pulled.d_v.view(), t.v) + inner(pulled.d_bias.view(), t.bias) +
                              inner(pulled.d_slopes.view(), t.slopes) + inner(pulled.d_table.view(), t.table) +
                              inner(pulled.d_sinks.view(), t.sinks) + inner(pulled.d_scale.view(), t.scale);
      const double size =
          std::sqrt(inner(problem.d_out, problem.d_out) * inner(moved.t_out.view(), moved.t_out.view())) +
          std::sqrt(inner(problem.d_lse, problem.d_lse) * inner(moved.t_lse.view(), moved.t_lse.view()));
      EXPECT_NEAR(forward, backward, 1e-11 * (1 + size)) << name(problem.spec) << "/" << target;
    });
  }
}

TEST(jvp, hidden_nan_changes_nothing) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Spec spec = random_spec(80'000 + seed, 220);
    if (spec.layout == Layout::expanded) spec.layout = Layout::contiguous;
    spec.features |= seed % 2 == 0 ? kKeyLengths : kMask;
    TestProblem problem(spec);
    Directions directions(problem, seed);
    const AttentionJvpReference before = run_jvp(problem, directions);
    problem.poison_hidden();
    directions.poison_hidden(problem);
    EXPECT_EQ(different_bits(before, run_jvp(problem, directions)), "") << name(problem.spec);
  }
}

TEST(jvp, same_bits_for_any_number_of_threads_and_any_layout) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const TestProblem problem(random_spec(50'000 + seed, seed % 4 == 0 ? 900 : 140));
    const Directions directions(problem, seed, moving(seed));
    const AttentionJvpReference one = run_jvp(problem, directions, {.threads = 1});
    for (const int threads : {2, 3, 8}) {
      EXPECT_EQ(different_bits(one, run_jvp(problem, directions, {.threads = threads, .layout = Layout::padded})), "")
          << name(problem.spec) << " with " << threads << " threads";
    }
  }
}

TEST(jvp, of_absent_tangents_is_zero) {
  const TestProblem problem({.seed = 4, .Tq = 30, .Tk = 40, .features = kSinks});
  const AttentionJvpReference results = run_jvp(problem, Directions(problem, 1, 0));
  for (const double value : elements(results.t_out.view())) EXPECT_EQ(value, 0);
  for (const double value : elements(results.t_lse.view())) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace qkv::test
