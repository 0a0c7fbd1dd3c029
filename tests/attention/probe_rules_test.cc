// SPDX-License-Identifier: Apache-2.0
//
// What statistics and weights must obey: rows a hand can compute, edge rules, and equal bits for equal rows.
#include <cmath>
#include <numeric>

#include "probe_run.h"
#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> numbers(int64_t count, double value) {
  return std::vector<double>(static_cast<size_t>(count), value);
}
double first(const Tensor& tensor) { return element(tensor.view(), 0); }

TEST(probe_rules, a_uniform_row_has_the_entropy_log_n) {
  on_each_target([](const std::string&) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const double ulp = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
      for (const int64_t n : {1, 2, 3, 7, 64, 65, 127, 128, 129, 511, 512, 513, 1300}) {
        const SmallProblem problem({.dtype = dtype, .q = {1}, .k = numbers(n, 0.5), .v = numbers(n, 1)});
        const Statistics results = problem.statistics();
        const double entropy = std::log(static_cast<double>(n));
        EXPECT_NEAR(first(results.row_entropy), entropy, ulp * entropy) << n;
        EXPECT_NEAR(first(results.row_max), 1 / static_cast<double>(n), ulp / static_cast<double>(n)) << n;
        EXPECT_EQ(first(results.row_top), 0) << n;
      }
    }
  });
}

TEST(probe_rules, the_share_of_a_sink_is_left_out) {
  for (const int64_t n : {1, 3, 200}) {
    SmallProblem problem({.q = {1, 1}, .k = numbers(n, 0), .v = numbers(n, 1)});
    const double sink[] = {0};
    problem.options.sinks = TensorView(sink, {1});
    const Statistics results = problem.statistics();
    const double a = 1 / static_cast<double>(n + 1);
    EXPECT_NEAR(first(results.row_entropy), static_cast<double>(n) * a * -std::log(a), 4 * 0x1p-52);
    EXPECT_NEAR(first(results.row_max), a, 0x1p-52);
    EXPECT_NEAR(first(results.key_mass), 2 * a, 2 * 0x1p-52);
  }
}

/// A sink far above every score leaves next to nothing, in the right digits.
TEST(probe_rules, a_sink_that_leads_keeps_the_digits_of_small_weights) {
  SmallProblem problem({.q = {1}, .k = {0, 0}, .v = {1, 1}});
  const double sink[] = {40};
  problem.options.sinks = TensorView(sink, {1});
  const Statistics results = problem.statistics();
  const double a = std::exp(-40.0);
  EXPECT_NEAR(first(results.row_max), a, 8 * 0x1p-52 * a);
  EXPECT_NEAR(first(results.row_entropy), 2 * a * 40, 8 * 0x1p-52 * 80 * a);
}

/// log(1 + x) and 1 - a would both be 0 when formed from rounded numbers.
TEST(probe_rules, a_row_that_is_almost_one_key_keeps_the_digits_of_its_entropy) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double ulp = dtype == DType::f64 ? 0x1p-52 : 0x1p-23;
    for (const double lead : {10.0, 30.0, 80.0}) {
      const SmallProblem problem({.dtype = dtype, .q = {1}, .k = {lead, 0}, .v = {1, 1}});
      const double a = std::exp(-lead) / (1 + std::exp(-lead));
      const double expected = std::log1p(std::exp(-lead)) + a * lead;
      EXPECT_NEAR(first(problem.statistics().row_entropy), expected, 4 * ulp * expected) << lead;
    }
  }
}

TEST(probe_rules, row_top_is_the_first_of_equals_in_every_block) {
  on_each_target([](const std::string&) {
    for (const int64_t n : {5, 130, 700, 1500}) {
      for (const int64_t best : {int64_t{0}, n / 3, n - 2}) {
        std::vector<double> k = numbers(n, 0);
        k[static_cast<size_t>(best)] = k.back() = 2;
        const SmallProblem problem({.dtype = DType::f32, .q = {1}, .k = k, .v = numbers(n, 1)});
        EXPECT_EQ(first(problem.statistics().row_top), best) << n;
      }
    }
  });
}

TEST(probe_rules, an_empty_row_has_no_top_and_zeros) {
  for (const bool with_sink : {false, true}) {
    SmallProblem problem({.q = {1, 1}, .k = {1, 2, 3}, .v = {1, 1, 1}});
    problem.options.causal = Causal::with_offset(-1);
    const double sink[] = {0.5};
    if (with_sink) problem.options.sinks = TensorView(sink, {1});
    const Statistics results = problem.statistics();
    EXPECT_EQ(first(results.row_entropy), 0);
    EXPECT_EQ(first(results.row_max), 0);
    EXPECT_EQ(first(results.row_top), -1);
    EXPECT_EQ(element(results.row_top.view(), 1), 0);
    EXPECT_EQ(element(results.key_mass.view(), 1), 0);
    Tensor weights(DType::f64, {1, 3});
    attention_weights(problem.q, problem.k, problem.v, problem.options, {0, 1}, {0, 3}, weights.mutable_view());
    EXPECT_EQ(elements(weights.view()), (std::vector<double>{0, 0, 0}));
  }
}

TEST(probe_rules, without_keys_every_row_is_empty) {
  const SmallProblem problem({.q = {1, 1}, .k = {}, .v = {}});
  const Statistics results = problem.statistics();
  EXPECT_EQ(elements(results.row_top.view()), (std::vector<double>{-1, -1}));
  EXPECT_EQ(elements(results.row_max.view()), (std::vector<double>{0, 0}));
  EXPECT_EQ(results.key_mass.shape(), (Dims{0}));
}

/// Row 1 sees a NaN key, row 0 does not; key 0 and 1 are seen by both, key 2 by row 1 alone.
TEST(probe_rules, a_nan_row_is_nan_alone) {
  for (const double spoilt : {kNan, std::numeric_limits<double>::infinity()}) {
    SmallProblem problem({.q = {1, 1}, .k = {0, 1, spoilt, 9}, .v = {1, 1, 1, 1}});
    problem.options.causal = Causal::with_offset(1);
    const Statistics results = problem.statistics();
    EXPECT_NEAR(first(results.row_max), std::exp(1.0) / (1 + std::exp(1.0)), 2 * 0x1p-52);
    EXPECT_EQ(first(results.row_top), 1);
    EXPECT_TRUE(std::isfinite(first(results.row_entropy)));
    EXPECT_TRUE(std::isnan(element(results.row_entropy.view(), 1)));
    EXPECT_TRUE(std::isnan(element(results.row_max.view(), 1)));
    EXPECT_EQ(element(results.row_top.view(), 1), 0) << "the first visible key";
    for (const int64_t j : {0, 1, 2}) EXPECT_TRUE(std::isnan(element(results.key_mass.view(), j))) << j;
    EXPECT_EQ(element(results.key_mass.view(), 3), 0) << "no row sees it";
    Tensor weights(DType::f64, {2, 4});
    attention_weights(problem.q, problem.k, problem.v, problem.options, {0, 2}, {0, 4}, weights.mutable_view());
    const std::vector<double> a = elements(weights.view());
    EXPECT_EQ(a[0] + a[1], 1);
    EXPECT_EQ(a[2] + a[3], 0);
    for (const size_t n : {4u, 5u, 6u}) EXPECT_TRUE(std::isnan(a[n])) << n;
    EXPECT_EQ(a[7], 0) << "hidden in a NaN row too";
  }
}

TEST(probe_rules, a_nan_after_several_blocks_still_spoils_its_row_and_names_the_first_key) {
  std::vector<double> k = numbers(1400, 0);
  k[0] = 5;
  k[1390] = kNan;
  SmallProblem problem({.q = {1, 1}, .k = k, .v = numbers(1400, 1)});
  problem.options.window = {.left = 0, .right = {}};
  const Statistics results = problem.statistics();
  EXPECT_TRUE(std::isnan(first(results.row_max)));
  EXPECT_EQ(first(results.row_top), 0);
  EXPECT_EQ(element(results.row_top.view(), 1), 1);
}

TEST(probe_rules, what_is_hidden_and_values_change_no_bit) {
  for (const uint32_t features : {uint32_t{kMask | kBias}, uint32_t{kCausalTopLeft | kKeyLengths},
                                  uint32_t{kSegments | kBlockMask}, uint32_t{kPacked | kWindow}}) {
    TestProblem problem({.seed = 6, .B = 2, .H = 4, .Hkv = 2, .Tq = 65, .Tk = 200, .features = features});
    SCOPED_TRACE(name(problem.spec));
    const Statistics before = run_statistics(problem);
    problem.poison_hidden();
    expect_same_bits(run_statistics(problem), before, "hidden NaN");
    for (int64_t n = 0; n < problem.v.elements(); ++n) {
      store_from_double(problem.v.dtype(), const_cast<void*>(element_address(problem.v, n)), kNan);
    }
    expect_same_bits(run_statistics(problem), before, "NaN values");
  }
}

TEST(probe_rules, a_row_of_lowest_scores_is_uniform) {
  SmallProblem problem({.dtype = DType::f32, .q = {1}, .k = {0, 0, 0, 0}, .v = {1, 1, 1, 1}});
  const std::vector<float> bias(4, -3.4e38F);
  problem.options.bias = TensorView(bias.data(), {1, 4});
  EXPECT_NEAR(first(problem.statistics().row_entropy), std::log(4.0), 0x1p-23 * std::log(4.0));
  // Products beyond f32 stay scores: the lowest there are.
  const SmallProblem overflow({.dtype = DType::f32, .q = {3e38}, .k = {-3e38, -3e38}, .v = {1, 1}});
  EXPECT_EQ(first(overflow.statistics().row_max), 0.5);
}

TEST(probe_rules, a_negative_scale_is_a_negated_query) {
  const SmallProblem positive({.dtype = DType::f32, .q = {-1.5, 0.3}, .k = {0.1, 2, -1}, .v = {1, 1, 1}});
  SmallProblem negative({.dtype = DType::f32, .q = {1.5, -0.3}, .k = {0.1, 2, -1}, .v = {1, 1, 1}});
  negative.options.scale = -1;
  expect_same_bits(negative.statistics(), positive.statistics(), "scale -1");
}

TEST(probe_rules, mass_adds_up_to_the_rows_that_see_a_key) {
  const TestProblem problem({.seed = 2,
                             .B = 2,
                             .H = 4,
                             .Hkv = 2,
                             .Tq = 200,
                             .Tk = 300,
                             .features = kCausalTopLeft | kQueryLengths | kKeyLengths});
  const Statistics results = run_statistics(problem);
  double rows = 0;
  for (const double top : elements(results.row_top.view())) rows += top >= 0 ? 1 : 0;
  const std::vector<double> mass = elements(results.key_mass.view());
  ASSERT_GT(rows, 0);
  EXPECT_NEAR(std::accumulate(mass.begin(), mass.end(), 0.0), rows, 8 * 0x1p-23 * rows);
}

/// Rows [first, first + count) of a tensor [1, H, T, D], as a view.
TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  Dims shape = view.shape();
  shape[2] = count;
  return {view.dtype(), view.at(first * view.stride(2)), shape, view.strides()};
}

TEST(probe_rules, a_row_alone_is_the_row_in_its_batch) {
  const TestProblem problem({.H = 2, .Hkv = 1, .Tq = 150, .Tk = 700, .D = 32, .features = kSinks | kSlopes});
  AttentionOptions options = problem.options;
  options.causal = Causal::with_offset(500);
  const Statistics all = run_statistics(problem, options);
  for (const int64_t row : {0, 47, 48, 97, 149}) {
    AttentionOptions shifted = options;
    shifted.causal = Causal::with_offset(500 + row);
    Tensor entropy(DType::f32, {1, 2, 1}), largest(DType::f32, {1, 2, 1}), top(DType::i64, {1, 2, 1});
    attention_statistics(rows_of(problem.q, row, 1), problem.k, problem.v, shifted,
                         {entropy.mutable_view(), largest.mutable_view(), top.mutable_view()});
    for (int64_t h = 0; h < 2; ++h) {
      EXPECT_EQ(element(entropy.view(), h), element(all.row_entropy.view(), h * 150 + row)) << row;
      EXPECT_EQ(element(largest.view(), h), element(all.row_max.view(), h * 150 + row)) << row;
      EXPECT_EQ(element(top.view(), h), element(all.row_top.view(), h * 150 + row)) << row;
    }
  }
}

TEST(probe_rules, a_packed_sequence_is_the_sequence_alone) {
  const TestProblem problem(
      {.seed = 9, .B = 4, .H = 2, .Hkv = 1, .Tq = 90, .Tk = 200, .features = kPacked | kCausalBottomRight | kSlopes});
  const Statistics all = run_statistics(problem);
  for (int64_t s = 0; s < 4; ++s) {
    const auto range = [&](const TensorView& starts) {
      return Range{static_cast<int64_t>(element(starts, s)), static_cast<int64_t>(element(starts, s + 1))};
    };
    const Range queries = range(problem.options.query_starts);
    const Range keys = range(problem.options.key_starts);
    const auto part = [](const TensorView& packed, Range rows) {  // [total, H, D] to [H, T, D]
      return TensorView(packed.dtype(), packed.at(rows.begin * packed.stride(0)),
                        {packed.size(1), rows.end - rows.begin, packed.size(2)},
                        {packed.stride(1), packed.stride(0), packed.stride(2)});
    };
    AttentionOptions options = problem.options;
    options.query_starts = options.key_starts = {};
    const int64_t Tq = queries.end - queries.begin, Tk = keys.end - keys.begin;
    Tensor entropy(DType::f32, {2, Tq}), top(DType::i64, {2, Tq}), mass(DType::f32, {2, Tk});
    attention_statistics(
        part(problem.q, queries), part(problem.k, keys), part(problem.v, keys), options,
        {.row_entropy = entropy.mutable_view(), .row_top = top.mutable_view(), .key_mass = mass.mutable_view()});
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < Tq; ++i) {
        EXPECT_EQ(element(entropy.view(), h * Tq + i), element(all.row_entropy.view(), (queries.begin + i) * 2 + h));
        EXPECT_EQ(element(top.view(), h * Tq + i), element(all.row_top.view(), (queries.begin + i) * 2 + h));
      }
      for (int64_t j = 0; j < Tk; ++j) {
        EXPECT_EQ(element(mass.view(), h * Tk + j), element(all.key_mass.view(), (keys.begin + j) * 2 + h));
      }
    }
  }
}

TEST(probe_rules, dropout_changes_no_weight) {
  const TestProblem problem({.Tq = 40, .Tk = 80, .features = kDropout});
  AttentionOptions without = problem.options;
  without.dropout = 0;
  expect_same_bits(run_statistics(problem), run_statistics(problem, without), "dropout");
}

}  // namespace
}  // namespace qkv::test
