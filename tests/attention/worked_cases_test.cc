// SPDX-License-Identifier: Apache-2.0
//
// The definition on numbers a reader can check, by the reference and by the plain formula.
#include "worked_cases.h"

#include <gtest/gtest.h>

#include "qkv/attention/reference.h"

namespace qkv::test {
namespace {

struct Run {
  DType dtype;
  Arithmetic arithmetic;
};

void expect_near(const std::string& what, const Tensor& result, const std::vector<double>& expected, double bound) {
  if (expected.empty()) return;
  ASSERT_TRUE(result) << what;
  const std::vector<double> values = elements(result.view());
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i]) continue;  // infinities
    EXPECT_NEAR(values[i], expected[i], bound) << what << "[" << i << "]";
  }
}

void expect_worked(const WorkedCase& worked, Run run) {
  const WorkedProblem problem(worked, run.dtype);
  const AttentionReference result = attention_reference(problem.q, problem.k, problem.v, problem.options,
                                                        run.arithmetic, problem.d_out, problem.d_lse);
  const std::string name = worked.name + "/" + std::string(qkv::name(run.dtype)) + "/";
  const double bound = worked_bound(run.dtype);
  expect_near(name + "out", result.out, worked.out, bound);
  expect_near(name + "lse", result.lse, worked.lse, bound);
  expect_near(name + "d_q", result.d_q, worked.d_q, bound);
  expect_near(name + "d_k", result.d_k, worked.d_k, bound);
  expect_near(name + "d_v", result.d_v, worked.d_v, bound);
  expect_near(name + "d_bias", result.d_bias, worked.d_bias, bound);
  expect_near(name + "d_slopes", result.d_slopes, worked.d_slopes, bound);
  expect_near(name + "d_sinks", result.d_sinks, worked.d_sinks, bound);
  expect_near(name + "d_table", result.d_table, worked.d_table, bound);
  expect_near(name + "d_scale", result.d_scale, worked.d_scale, bound);
}

TEST(worked_cases, the_reference_gives_what_a_hand_gives) {
  for (const WorkedCase& worked : worked_cases()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      expect_worked(worked, {dtype, Arithmetic::reference});
    }
  }
}

TEST(worked_cases, the_plain_formula_gives_what_a_hand_gives) {
  for (const WorkedCase& worked : worked_cases()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      expect_worked(worked, {dtype, Arithmetic::plain});
    }
  }
}

TEST(worked_cases, three_directions_give_4_36_to_two_places) {
  for (const WorkedCase& worked : worked_cases()) {
    if (worked.name == "three_directions") {
      EXPECT_NEAR(worked.out[0], 4.36, 0.005);
    }
  }
}

}  // namespace
}  // namespace qkv::test
