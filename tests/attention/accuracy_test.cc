// SPDX-License-Identifier: Apache-2.0
//
// The tools that judge the library are judged first: what is right passes, what is a little wrong does not.
#include "accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "qkv/support/error.h"

namespace qkv::test {
namespace {

AttentionReference plain_results(const TestProblem& problem) {
  return attention_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::plain, problem.d_out,
                             problem.d_lse);
}

TEST(accuracy, the_plain_formula_keeps_its_own_bound_on_random_problems) {
  std::set<uint32_t> features;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const TestProblem problem(random_spec(seed, 65));
    features.insert(problem.spec.features);
    const AttentionReference plain = plain_results(problem);
    for (const Comparison& comparison : compare(problem, plain)) {
      EXPECT_TRUE(comparison.holds()) << name(problem.spec) << ": " << comparison.text();
      EXPECT_LE(comparison.ratio(), 1) << name(problem.spec) << ": " << comparison.text();
      EXPECT_TRUE(std::isfinite(comparison.error)) << name(problem.spec) << ": " << comparison.text();
    }
  }
  EXPECT_GT(features.size(), 50u) << "the generator must not draw the same options again and again";
}

/// A result moved by a relative amount in one element.
void expect_noticed(const TestProblem& problem, Tensor AttentionReference::*member, double relative) {
  AttentionReference results = plain_results(problem);
  Tensor& tensor = results.*member;
  int64_t largest = 0;
  for (int64_t i = 0; i < tensor.view().elements(); ++i) {
    if (std::fabs(element(tensor.view(), i)) > std::fabs(element(tensor.view(), largest))) largest = i;
  }
  void* const address = const_cast<void*>(element_address(tensor.view(), largest));
  store_from_double(tensor.dtype(), address, element(tensor.view(), largest) * (1 + relative));
  int failed = 0;
  for (const Comparison& comparison : compare(problem, results)) failed += comparison.holds() ? 0 : 1;
  EXPECT_EQ(failed, 1) << name(problem.spec) << " moved by " << relative;
}

TEST(accuracy, one_element_that_is_wrong_is_noticed) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const double relative = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-4 : 0.3;
    const TestProblem problem({.dtype = dtype,
                               .H = 4,
                               .Hkv = 2,
                               .Tq = 33,
                               .Tk = 65,
                               .D = 16,
                               .Dv = 16,
                               .features = kBias | kSinks | kSlopes | kTable | kDLse});
    for (const auto member :
         {&AttentionReference::out, &AttentionReference::lse, &AttentionReference::d_q, &AttentionReference::d_k,
          &AttentionReference::d_v, &AttentionReference::d_bias, &AttentionReference::d_slopes,
          &AttentionReference::d_table, &AttentionReference::d_sinks, &AttentionReference::d_scale}) {
      expect_noticed(problem, member, relative);
    }
  }
}

// An allowance far beyond the plain formula's error would let a wrong result pass. Sums over all pairs (d_scale) have
// wider ones: they are allowed the square root of the number of their terms.
TEST(accuracy, allowances_stay_of_the_order_of_the_plain_formulas_error) {
  const TestProblem problem({.H = 2, .Hkv = 2, .Tq = 33, .Tk = 65, .D = 64, .Dv = 64, .features = kDLse});
  for (const Comparison& comparison : compare(problem, plain_results(problem))) {
    EXPECT_GT(comparison.plain_error, 0) << comparison.text();
    const double limit = comparison.name == "d_scale" ? std::sqrt(2.0 * 33 * 65) * 32 : 8;
    EXPECT_LT(comparison.allowance, limit * comparison.plain_error) << comparison.text();
  }
}

TEST(accuracy, nan_and_infinity_are_compared_by_kind) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto error = [](float result, double reference) { return largest_error({&result, {1}}, {&reference, {1}}); };
  EXPECT_EQ(error(1.0f, 1.5), 0.5);
  EXPECT_EQ(error(static_cast<float>(nan), nan), 0);
  EXPECT_EQ(error(1.0f, nan), infinity);
  EXPECT_EQ(error(static_cast<float>(nan), 1.0), infinity);
  EXPECT_EQ(error(static_cast<float>(infinity), infinity), 0);
  EXPECT_EQ(error(static_cast<float>(infinity), -infinity), infinity);
  EXPECT_EQ(error(static_cast<float>(infinity), 1e39), 0) << "what f32 stores of it";
  EXPECT_EQ(error(static_cast<float>(infinity), 1e37), infinity);
}

TEST(accuracy, bytes_beside_the_elements_are_watched) {
  for (const Layout layout : {Layout::contiguous, Layout::token_major, Layout::reversed, Layout::padded,
                              Layout::strided, Layout::transposed}) {
    StridedTensor tensor(DType::f16, {2, 3, 4, 5}, layout);
    tensor.fill([](int64_t i) { return static_cast<double>(i); });
    for (int64_t i = 0; i < 120; ++i) ASSERT_EQ(element(tensor.view(), i), static_cast<double>(i)) << name(layout);
    EXPECT_TRUE(tensor.padding_intact()) << name(layout);
    const char* const first = static_cast<const char*>(tensor.view().data());
    const_cast<char*>(first)[layout == Layout::reversed ? 2 : -2] = 0;  // beside element 0, on the empty side
    EXPECT_FALSE(tensor.padding_intact()) << name(layout);
  }
}

}  // namespace
}  // namespace qkv::test
