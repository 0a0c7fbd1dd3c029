// SPDX-License-Identifier: Apache-2.0
//
// The reference's forward mode and second order against central differences of its forward and backward, in f64, on
// every option; and what the two owe each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "directions.h"
#include "qkv/attention/reference.h"
#include "qkv/support/error.h"
#include "qkv/support/random.h"

namespace qkv::test {
namespace {

constexpr double kStep = 0x1p-14;

/// Bound of a central difference: the truncation error, c h^2, is a third of the change when h doubles; twice the whole
/// change is allowed, and the rounding of numbers of size `terms`.
double difference_bound(double near, double far, double terms) {
  return 2 * std::fabs(far - near) + 32 * 0x1p-52 * (1 + terms) / kStep;
}

AttentionReference forward(const TestProblem& problem) {
  return attention_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference);
}

AttentionJvpReference jvp(const TestProblem& problem, const AttentionTangents& tangents) {
  return attention_jvp_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference, tangents);
}

AttentionReference backward(const TestProblem& problem) {
  return attention_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference, problem.d_out,
                             problem.d_lse);
}

AttentionSecondReference second(const TestProblem& problem, const AttentionCotangents& cotangents) {
  return attention_second_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference,
                                    {problem.d_out, problem.d_lse}, cotangents);
}

void expect_differences(const std::string& what, const TensorView& tangent, const TensorView& after,
                        const TensorView& before, const TensorView& far_after, const TensorView& far_before) {
  for (int64_t i = 0; i < tangent.elements(); ++i) {
    const double near = (element(after, i) - element(before, i)) / (2 * kStep);
    const double far = (element(far_after, i) - element(far_before, i)) / (4 * kStep);
    if (!std::isfinite(near)) {  // lse of an empty row
      EXPECT_EQ(element(tangent, i), 0) << what << "[" << i << "]";
      continue;
    }
    EXPECT_NEAR(element(tangent, i), near, difference_bound(near, far, std::fabs(element(after, i))))
        << what << "[" << i << "]";
  }
}

void expect_jvp(TestProblem& problem, const Directions& directions) {
  const auto at = [&](double h) {
    const Moved moved(problem, directions, h);
    return forward(problem);
  };
  const AttentionJvpReference tangent = jvp(problem, directions.tangents);
  const AttentionReference after = at(kStep), before = at(-kStep), far_after = at(2 * kStep),
                           far_before = at(-2 * kStep);
  expect_differences("t_out", tangent.t_out.view(), after.out.view(), before.out.view(), far_after.out.view(),
                     far_before.out.view());
  expect_differences("t_lse", tangent.t_lse.view(), after.lse.view(), before.lse.view(), far_after.lse.view(),
                     far_before.lse.view());
}

double part(const Tensor& tensor, const TensorView& direction) { return tensor ? inner(tensor.view(), direction) : 0; }

double along(const AttentionReference& gradients, const AttentionCotangents& cotangents) {
  return part(gradients.d_q, cotangents.q) + part(gradients.d_k, cotangents.k) + part(gradients.d_v, cotangents.v) +
         part(gradients.d_bias, cotangents.bias) + part(gradients.d_slopes, cotangents.slopes) +
         part(gradients.d_table, cotangents.table) + part(gradients.d_sinks, cotangents.sinks);
}

double along(const AttentionSecondReference& gradients, const Directions& directions) {
  const AttentionTangents& tangents = directions.tangents;
  return part(gradients.g_q, tangents.q) + part(gradients.g_k, tangents.k) + part(gradients.g_v, tangents.v) +
         part(gradients.g_bias, tangents.bias) + part(gradients.g_slopes, tangents.slopes) +
         part(gradients.g_table, tangents.table) + part(gradients.g_sinks, tangents.sinks) +
         part(gradients.g_d_out, directions.d_out) + part(gradients.g_d_lse, directions.d_lse);
}

/// The derivative of <cotangents, gradients> along a direction is that of the backward.
void expect_second(TestProblem& problem, const Directions& cotangents, const Directions& directions) {
  const auto at = [&](double h) {
    const Moved moved(problem, directions, h);
    return along(backward(problem), cotangents.cotangents());
  };
  const double near = (at(kStep) - at(-kStep)) / (2 * kStep);
  const double far = (at(2 * kStep) - at(-2 * kStep)) / (4 * kStep);
  EXPECT_NEAR(along(second(problem, cotangents.cotangents()), directions), near,
              difference_bound(near, far, 10 * std::fabs(at(0))));
}

constexpr uint32_t kSecondMoves = kMoveAll & ~uint32_t{kMoveScale};

void expect_derivatives(Spec spec) {
  TestProblem problem(spec);
  while (problem.options.bias && problem.options.bias.dtype() != DType::f64) {  // a step must not be rounded
    spec.seed += 1000;
    return expect_derivatives(spec);
  }
  SCOPED_TRACE(name(problem.spec));
  expect_jvp(problem, Directions(problem, 1));
  expect_jvp(problem, Directions(problem, 2, static_cast<uint32_t>(mix64(spec.seed)) & kMoveAll));
  expect_second(problem, Directions(problem, 3, kSecondMoves), Directions(problem, 4, kSecondMoves));
  expect_second(problem, Directions(problem, 5, static_cast<uint32_t>(mix64(spec.seed + 1)) & kSecondMoves),
                Directions(problem, 6, kSecondMoves));
}

Spec small_problem(uint64_t seed) {
  return {.seed = seed, .dtype = DType::f64, .B = 2, .H = 2, .Hkv = 1, .Tq = 4, .Tk = 6, .D = 3, .Dv = 2};
}

TEST(reference_derivatives, equal_central_differences_with_each_option_alone) {
  for (const Spec& spec : each_feature_alone(small_problem(1))) expect_derivatives(spec);
}

TEST(reference_derivatives, equal_central_differences_with_options_combined) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Spec spec = random_spec(seed);
    spec.dtype = DType::f64;
    spec.values = Values::normal;
    spec.threads = 1;
    if (spec.layout == Layout::expanded) spec.layout = Layout::reversed;  // a step would move several elements at once
    spec.Tq = std::min<int64_t>(spec.Tq, 5);
    spec.Tk = std::min<int64_t>(spec.Tk, 6);
    spec.D = std::clamp<int64_t>(spec.D, 1, 3);
    spec.Dv = std::min<int64_t>(spec.Dv, 2);
    spec.features |= static_cast<uint32_t>(mix64(seed)) & kAllFeatures & ~(seed % 4 != 0 ? uint32_t{kPacked} : 0u);
    expect_derivatives(compatible(spec));
  }
}

TEST(reference_derivatives, tangent_of_the_sink_is_that_of_lse_in_an_empty_row) {
  const double values[] = {1, 2, 3, 4};
  const double sink = 0.5, t_sink = 7;
  const int64_t none = 0;
  AttentionOptions options;
  options.sinks = TensorView(&sink, Dims{1});
  options.key_lengths = TensorView(&none, Dims{1});
  const TensorView rows(values, Dims{2, 2});
  AttentionTangents tangents{.q = rows};
  tangents.sinks = TensorView(&t_sink, Dims{1});
  const AttentionJvpReference tangent =
      attention_jvp_reference(rows, rows, rows, options, Arithmetic::reference, tangents);
  for (const double value : elements(tangent.t_lse.view())) EXPECT_EQ(value, 7);
  for (const double value : elements(tangent.t_out.view())) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace qkv::test
