// SPDX-License-Identifier: Apache-2.0
//
// Every gradient of the reference against central differences of its forward, in f64, on every option.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "problems.h"
#include "qkv/attention/reference.h"
#include "qkv/support/error.h"
#include "qkv/support/random.h"

namespace qkv::test {
namespace {

constexpr double kStep = 0x1p-14;

/// L = <dO, out> + <dLSE, lse> and the sum of the magnitudes of its terms, whose rounding a difference divides by h.
struct Loss {
  double value = 0;
  double terms = 0;

  void add(const TensorView& result, const TensorView& upstream) {
    for (int64_t i = 0; i < result.elements(); ++i) {
      const double term = element(result, i) * element(upstream, i);
      if (!std::isfinite(term)) continue;  // lse of an empty row
      value += term;
      terms += std::fabs(term) + std::fabs(element(upstream, i));
    }
  }
};

Loss loss(const TestProblem& problem, const AttentionOptions& options) {
  const AttentionReference result =
      attention_reference(problem.q, problem.k, problem.v, options, Arithmetic::reference);
  Loss sum;
  sum.add(result.out.view(), problem.d_out);
  if (problem.d_lse) sum.add(result.lse.view(), problem.d_lse);
  return sum;
}

/// Compares `derivative` with (L(x + h) - L(x - h)) / 2h. The truncation error, c h^2, is a third of the change when h
/// doubles; twice the whole change is allowed, and the rounding of L.
void expect_derivative(const std::string& what, double derivative, const std::function<Loss(double)>& loss_at) {
  const auto difference = [&](double h) { return (loss_at(h).value - loss_at(-h).value) / (2 * h); };
  const double near = difference(kStep);
  const double far = difference(2 * kStep);
  const double bound = 2 * std::fabs(far - near) + 16 * 0x1p-52 * (1 + loss_at(0).terms) / kStep;
  EXPECT_NEAR(derivative, near, bound) << what;
}

void expect_tensor(const TestProblem& problem, const std::string& what, const TensorView& tensor,
                   const Tensor& gradient) {
  if (!tensor) {
    EXPECT_FALSE(gradient) << what;
    return;
  }
  ASSERT_TRUE(gradient) << what;
  ASSERT_EQ(gradient.shape(), tensor.shape()) << what;
  ASSERT_EQ(gradient.dtype(), DType::f64);
  ASSERT_EQ(tensor.dtype(), DType::f64) << "a step must not be rounded";
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    double* const x = static_cast<double*>(const_cast<void*>(element_address(tensor, i)));
    const double before = *x;
    if (!std::isfinite(before)) {  // a bias of -inf hides, and hides still when moved
      EXPECT_EQ(element(gradient.view(), i), 0) << what;
      continue;
    }
    expect_derivative(concat(what, "[", i, "]"), element(gradient.view(), i), [&](double h) {
      *x = before + h;
      const Loss result = loss(problem, problem.options);
      *x = before;
      return result;
    });
  }
}

void expect_gradients(const Spec& spec) {
  const TestProblem problem(spec);
  if (problem.options.bias && problem.options.bias.dtype() != DType::f64) {
    Spec next = spec;
    next.seed += 1000;
    return expect_gradients(next);
  }
  SCOPED_TRACE(name(problem.spec));
  const AttentionOptions& options = problem.options;
  const AttentionReference result = attention_reference(problem.q, problem.k, problem.v, options, Arithmetic::reference,
                                                        problem.d_out, problem.d_lse);
  expect_tensor(problem, "d_q", problem.q, result.d_q);
  expect_tensor(problem, "d_k", problem.k, result.d_k);
  expect_tensor(problem, "d_v", problem.v, result.d_v);
  expect_tensor(problem, "d_bias", options.bias, result.d_bias);
  expect_tensor(problem, "d_slopes", options.slopes, result.d_slopes);
  expect_tensor(problem, "d_table", options.table, result.d_table);
  expect_tensor(problem, "d_sinks", options.sinks, result.d_sinks);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(problem.spec.D)));
  expect_derivative("d_scale", element(result.d_scale.view(), 0), [&](double h) {
    AttentionOptions moved = options;
    moved.scale = scale + h;
    return loss(problem, moved);
  });
}

Spec small_problem(uint64_t seed) {
  return {.seed = seed,
          .dtype = DType::f64,
          .B = 2,
          .H = 2,
          .Hkv = 1,
          .Tq = 4,
          .Tk = 6,
          .D = 3,
          .Dv = 2,
          .features = kDLse};
}

TEST(reference_gradient, equals_central_differences_with_each_option_alone) {
  for (const Spec& spec : each_feature_alone(small_problem(1))) expect_gradients(spec);
}

TEST(reference_gradient, equals_central_differences_with_options_combined) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
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
    expect_gradients(compatible(spec));
  }
}

}  // namespace
}  // namespace qkv::test
