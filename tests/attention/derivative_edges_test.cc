// SPDX-License-Identifier: Apache-2.0
//
// Section "Corners" of docs/semantics.md for gradients, forward mode and second order: NaN reaches what the reference
// says and nothing else, rows that see nothing may hold anything.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "derivatives.h"
#include "qkv/attention/reference.h"
#include "qkv/support/random.h"

namespace qkv::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Spec spec_of(uint64_t seed) {
  Spec spec = random_spec(seed, seed % 8 == 0 ? 450 : 70);
  spec.values = Values::normal;
  if (spec.layout == Layout::expanded) spec.layout = Layout::contiguous;  // its elements are not one number each
  return spec;
}

void put(const TensorView& view, int64_t index, double value) {
  store_from_double(view.dtype(), const_cast<void*>(element_address(view, index)), value);
}

struct NamedInput {
  const char* name;
  TensorView view;
};

/// Every number that a problem and its directions hold.
std::vector<NamedInput> inputs_of(const TestProblem& problem, const Directions& directions) {
  const AttentionOptions& options = problem.options;
  const AttentionTangents& t = directions.tangents;
  std::vector<NamedInput> inputs = {{"q", problem.q},
                                    {"k", problem.k},
                                    {"v", problem.v},
                                    {"bias", options.bias},
                                    {"slopes", options.slopes},
                                    {"table", options.table},
                                    {"sinks", options.sinks},
                                    {"d_out", problem.d_out},
                                    {"d_lse", problem.d_lse},
                                    {"t_q", t.q},
                                    {"t_k", t.k},
                                    {"t_v", t.v},
                                    {"t_bias", t.bias},
                                    {"t_slopes", t.slopes},
                                    {"t_table", t.table},
                                    {"t_sinks", t.sinks}};
  std::erase_if(inputs, [](const NamedInput& input) { return !input.view || input.view.elements() == 0; });
  return inputs;
}

/// Elements that are NaN in one and not in the other.
int64_t nan_differences(const Tensor& ours, const Tensor& reference) {
  int64_t count = 0;
  if (!ours) return count;
  for (int64_t n = 0; n < ours.view().elements(); ++n) {
    count += std::isnan(element(ours.view(), n)) != std::isnan(element(reference.view(), n)) ? 1 : 0;
  }
  return count;
}

template <class Results>
struct NamedMember {
  const char* name;
  Tensor Results::*member;
};
using Gradients = AttentionReference;
using Second = AttentionSecondReference;
constexpr NamedMember<Gradients> kGradients[] = {{"out", &Gradients::out},         {"lse", &Gradients::lse},
                                                 {"d_q", &Gradients::d_q},         {"d_k", &Gradients::d_k},
                                                 {"d_v", &Gradients::d_v},         {"d_bias", &Gradients::d_bias},
                                                 {"d_table", &Gradients::d_table}, {"d_slopes", &Gradients::d_slopes},
                                                 {"d_sinks", &Gradients::d_sinks}, {"d_scale", &Gradients::d_scale}};
constexpr NamedMember<AttentionJvpReference> kTangents[] = {{"t_out", &AttentionJvpReference::t_out},
                                                            {"t_lse", &AttentionJvpReference::t_lse}};
constexpr NamedMember<Second> kSecond[] = {
    {"g_q", &Second::g_q},         {"g_k", &Second::g_k},           {"g_v", &Second::g_v},
    {"g_bias", &Second::g_bias},   {"g_slopes", &Second::g_slopes}, {"g_table", &Second::g_table},
    {"g_sinks", &Second::g_sinks}, {"g_d_out", &Second::g_d_out},   {"g_d_lse", &Second::g_d_lse}};

template <class Results, size_t N>
void expect_same_nan(const NamedMember<Results> (&members)[N], const Results& ours, const Results& reference,
                     const std::string& where) {
  for (const NamedMember<Results>& one : members) {
    EXPECT_EQ(nan_differences(ours.*one.member, reference.*one.member), 0) << one.name << " of " << where;
  }
}

// The reference of second order once wrote a NaN row's gradient to the sinks of a problem without any.
TEST(derivative_edges, one_nan_reaches_what_the_reference_says) {
  for (uint64_t seed = 500'001; seed <= 500'120; ++seed) {
    const TestProblem problem(spec_of(seed));
    const Directions directions(problem, seed);
    const std::vector<NamedInput> inputs = inputs_of(problem, directions);
    if (inputs.empty() || problem.spec.D == 0) continue;  // without a width nothing depends on the scale: d_scale is 0
    const NamedInput& input = inputs[mix64(seed) % inputs.size()];
    put(input.view, static_cast<int64_t>(mix64(~seed) % static_cast<uint64_t>(input.view.elements())), kNan);
    const AttentionReference gradients = attention_reference(problem.q, problem.k, problem.v, problem.options,
                                                             Arithmetic::reference, problem.d_out, problem.d_lse);
    const AttentionJvpReference tangents = attention_jvp_reference(problem.q, problem.k, problem.v, problem.options,
                                                                   Arithmetic::reference, directions.tangents);
    const AttentionSecondReference second =
        attention_second_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference,
                                   {problem.d_out, problem.d_lse}, directions.cotangents());
    for_each_target([&](const std::string& target) {
      const std::string where = name(problem.spec) + " with NaN in " + input.name + "/" + target;
      const RunOptions run{.threads = problem.spec.threads};
      expect_same_nan(kGradients, run_operation(problem, run), gradients, where);
      expect_same_nan(kTangents, run_jvp(problem, directions, run), tangents, where);
      expect_same_nan(kSecond, run_second(problem, directions, run), second, where);
    });
  }
}

/// Spoils q, d_out, d_lse and t_q of every row that sees no key; returns how many there are.
int64_t spoil_empty_rows(const TestProblem& problem, const Directions& directions) {
  const AttentionReference forward =
      attention_reference(problem.q, problem.k, problem.v, problem.options, Arithmetic::reference);
  int64_t rows = 0;
  for (int64_t row = 0; row < forward.lse.view().elements(); ++row) {
    if (element(forward.lse.view(), row) != -kInf) continue;
    ++rows;
    const double value = row % 2 == 0 ? kNan : kInf;
    for (const TensorView& view : {problem.q, problem.d_out, directions.tangents.q}) {
      const int64_t width = view.size(view.rank() - 1);
      for (int64_t column = 0; column < width; ++column) put(view, row * width + column, value);
    }
    if (problem.d_lse) put(problem.d_lse, row, value);
  }
  return rows;
}

TEST(derivative_edges, rows_that_see_nothing_may_hold_anything) {
  int64_t rows = 0;
  for (uint64_t seed = 550'001; seed <= 550'200; ++seed) {
    Spec spec = spec_of(seed);
    spec.features |= seed % 2 == 0 ? kMask : kQueryLengths;
    spec.features &= ~uint32_t{kSinks};  // a sink would still listen to d_lse
    const TestProblem problem(spec);
    const Directions directions(problem, seed);
    const AttentionReference gradients = run_operation(problem);
    const AttentionJvpReference tangents = run_jvp(problem, directions);
    const AttentionSecondReference second = run_second(problem, directions);
    rows += spoil_empty_rows(problem, directions);
    EXPECT_EQ(different_bits(gradients, run_operation(problem)), "") << name(problem.spec);
    EXPECT_EQ(different_bits(tangents, run_jvp(problem, directions)), "") << name(problem.spec);
    EXPECT_EQ(different_bits(second, run_second(problem, directions)), "") << name(problem.spec);
  }
  EXPECT_GT(rows, 1000);
}

}  // namespace
}  // namespace qkv::test
