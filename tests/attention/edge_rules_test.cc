// SPDX-License-Identifier: Apache-2.0
//
// Section "Corners" of docs/semantics.md: empty rows, what is hidden, what is visible, extreme numbers, extreme
// sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "accuracy.h"
#include "operation.h"
#include "qkv/attention/probe.h"

namespace qkv::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t masks() {
  return kCausalTopLeft | kCausalBottomRight | kCausalOffset | kCausalOffsets | kWindow | kKeyLengths | kQueryLengths |
         kMask | kSegments | kBlockMask | kBias | kPacked;
}

TEST(edge_rules, hidden_nan_changes_nothing_forward_or_backward) {
  int64_t poisoned = 0;
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    Spec spec = random_spec(80'000 + seed, 220);
    if (spec.layout == Layout::expanded) spec.layout = Layout::contiguous;
    if ((spec.features & masks()) == 0) spec.features |= kMask | kKeyLengths;
    TestProblem problem(spec);
    const AttentionReference before = run_operation(problem);
    poisoned += problem.poison_hidden();
    EXPECT_EQ(different_bits(before, run_operation(problem)), "") << name(problem.spec);
  }
  EXPECT_GT(poisoned, 1000);
}

/// A small causal problem in f32 whose tensors tests may spoil: H = 2, T = 70, D = 20, Dv = 24.
struct Spoiled {
  static constexpr int64_t H = 2, T = 70, D = 20, Dv = 24;
  TestProblem problem{{.seed = 9, .H = H, .Hkv = H, .Tq = T, .Tk = T, .D = D, .Dv = Dv, .features = kCausalTopLeft}};
  AttentionReference clean = run_operation(problem);

  static void put(const TensorView& view, int64_t h, int64_t row, int64_t column, float value) {
    *static_cast<float*>(
        const_cast<void*>(view.at(h * view.stride(1) + row * view.stride(2) + column * view.stride(3)))) = value;
  }
  /// True when every element of a result's row is NaN; `same` when it has the bits of the clean one.
  static bool all_nan(const Tensor& result, int64_t h, int64_t row, int64_t width) {
    bool all = true;
    for (int64_t c = 0; c < width; ++c) all = all && std::isnan(element(result.view(), (h * T + row) * width + c));
    return all;
  }
  static bool same(const Tensor& result, const Tensor& expected, int64_t h, int64_t row, int64_t width) {
    bool all = true;
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = (h * T + row) * width + c;
      all = all && element(result.view(), at) == element(expected.view(), at);
    }
    return all;
  }
};

TEST(edge_rules, nan_in_a_query_makes_that_row_nan_and_no_other) {
  Spoiled it;
  Spoiled::put(it.problem.q, 1, 33, 5, kNan);
  const AttentionReference results = run_operation(it.problem);
  for (int64_t h = 0; h < Spoiled::H; ++h) {
    for (int64_t i = 0; i < Spoiled::T; ++i) {
      const bool spoiled = h == 1 && i == 33;
      EXPECT_EQ(Spoiled::all_nan(results.out, h, i, Spoiled::Dv), spoiled);
      EXPECT_EQ(Spoiled::all_nan(results.d_q, h, i, Spoiled::D), spoiled);
      EXPECT_EQ(Spoiled::same(results.out, it.clean.out, h, i, Spoiled::Dv), !spoiled);
      EXPECT_EQ(Spoiled::same(results.d_q, it.clean.d_q, h, i, Spoiled::D), !spoiled);
      // Keys after the query are hidden from it.
      const bool unseen = h == 0 || i > 33;
      EXPECT_EQ(Spoiled::same(results.d_k, it.clean.d_k, h, i, Spoiled::D), unseen);
      EXPECT_EQ(Spoiled::same(results.d_v, it.clean.d_v, h, i, Spoiled::Dv), unseen);
    }
  }
}

TEST(edge_rules, nan_in_a_visible_key_or_value_makes_the_rows_that_see_it_nan) {
  for (const bool in_key : {true, false}) {
    Spoiled it;
    Spoiled::put(in_key ? it.problem.k : it.problem.v, 0, 40, 3, kNan);
    const AttentionReference results = run_operation(it.problem);
    for (int64_t h = 0; h < Spoiled::H; ++h) {
      for (int64_t i = 0; i < Spoiled::T; ++i) {
        const bool sees = h == 0 && i >= 40;
        EXPECT_EQ(Spoiled::same(results.out, it.clean.out, h, i, Spoiled::Dv), !sees) << h << " " << i;
        EXPECT_EQ(std::isnan(element(results.out.view(), (h * Spoiled::T + i) * Spoiled::Dv + 3)), sees);
        EXPECT_EQ(Spoiled::same(results.d_q, it.clean.d_q, h, i, Spoiled::D), !sees);
        EXPECT_EQ(Spoiled::all_nan(results.d_q, h, i, Spoiled::D), sees);
      }
    }
  }
}

TEST(edge_rules, nan_in_an_upstream_row_reaches_only_what_the_row_sees) {
  Spoiled it;
  Spoiled::put(it.problem.d_out, 0, 10, 7, kNan);
  const AttentionReference results = run_operation(it.problem);
  for (int64_t i = 0; i < Spoiled::T; ++i) {
    EXPECT_EQ(Spoiled::same(results.d_q, it.clean.d_q, 0, i, Spoiled::D), i != 10);
    EXPECT_EQ(Spoiled::same(results.d_k, it.clean.d_k, 0, i, Spoiled::D), i > 10);
    EXPECT_EQ(std::isnan(element(results.d_v.view(), i * Spoiled::Dv + 7)), i <= 10);
    EXPECT_FALSE(std::isnan(element(results.d_v.view(), i * Spoiled::Dv + 6)));
  }
}

/// One row of attention in f32: H = 1, Tq = 1.
struct OneRow {
  std::vector<float> q, k, v;
  AttentionOptions options = {};

  AttentionReference run(const std::vector<float>& d_out = {}) const {
    const int64_t D = static_cast<int64_t>(q.size());
    const int64_t Tk = static_cast<int64_t>(k.size()) / std::max<int64_t>(D, 1);
    const int64_t Dv = static_cast<int64_t>(v.size()) / Tk;
    const std::vector<float> upstream = d_out.empty() ? std::vector<float>(static_cast<size_t>(Dv), 1) : d_out;
    return run_operation({TensorView(q.data(), Dims{1, D}),
                          TensorView(k.data(), Dims{Tk, D}),
                          TensorView(v.data(), Dims{Tk, Dv}),
                          TensorView(upstream.data(), Dims{1, Dv}),
                          {},
                          options});
  }
};

TEST(edge_rules, empty_row_is_zero_with_zero_gradients) {
  OneRow row{.q = {kNan}, .k = {kInf, 1}, .v = {kNan, 2}};
  const int64_t none = 0;
  row.options.key_lengths = TensorView(&none, Dims{1});
  const AttentionReference results = row.run({kInf});
  EXPECT_EQ(element(results.out.view(), 0), 0);
  EXPECT_EQ(element(results.lse.view(), 0), -kInf);
  for (const Tensor* gradient : {&results.d_q, &results.d_k, &results.d_v, &results.d_scale}) {
    for (const double value : elements(gradient->view())) EXPECT_EQ(value, 0);
  }
}

TEST(edge_rules, empty_row_with_a_sink_keeps_the_sinks_own_derivative) {
  const float sink = 0.75F;
  const float d_lse = 3;
  const int64_t none = 0;
  const std::vector<float> q = {1}, k = {1, 2}, v = {3, kNan}, d_out = {kNan};
  AttentionOptions options;
  options.sinks = TensorView(&sink, Dims{1});
  options.key_lengths = TensorView(&none, Dims{1});
  const AttentionReference results = run_operation(
      {TensorView(q.data(), Dims{1, 1}), TensorView(k.data(), Dims{2, 1}), TensorView(v.data(), Dims{2, 1}),
       TensorView(d_out.data(), Dims{1, 1}), TensorView(&d_lse, Dims{1}), options});
  EXPECT_EQ(element(results.out.view(), 0), 0);
  EXPECT_EQ(element(results.lse.view(), 0), 0.75);
  EXPECT_EQ(element(results.d_sinks.view(), 0), 3);
  EXPECT_EQ(element(results.d_q.view(), 0), 0);
}

TEST(edge_rules, empty_row_gives_back_any_sink) {
  const float d_lse = 3;
  const int64_t none = 0;
  const std::vector<float> q = {1}, k = {1, 2}, v = {3, kNan}, d_out = {1};
  for (const float sink : {kInf, -kInf, kNan, 3e38F}) {
    AttentionOptions options;
    options.sinks = TensorView(&sink, Dims{1});
    options.key_lengths = TensorView(&none, Dims{1});
    const AttentionReference results = run_operation(
        {TensorView(q.data(), Dims{1, 1}), TensorView(k.data(), Dims{2, 1}), TensorView(v.data(), Dims{2, 1}),
         TensorView(d_out.data(), Dims{1, 1}), TensorView(&d_lse, Dims{1}), options});
    EXPECT_EQ(element(results.out.view(), 0), 0) << sink;
    const double lse = element(results.lse.view(), 0);
    EXPECT_TRUE(std::isnan(sink) ? std::isnan(lse) : lse == sink) << sink << " " << lse;
    EXPECT_EQ(element(results.d_sinks.view(), 0), 3) << sink;
    EXPECT_EQ(element(results.d_q.view(), 0), 0) << sink;
  }
}

TEST(edge_rules, nan_in_a_query_is_nan_in_lse_too_with_any_sink) {
  for (const float sink : {-kInf, 0.5F, 1e30F}) {
    OneRow row{.q = {kNan}, .k = {1, 2}, .v = {1, 3}};
    row.options.sinks = TensorView(&sink, Dims{1});
    const AttentionReference results = row.run();
    EXPECT_TRUE(std::isnan(element(results.out.view(), 0))) << sink;
    EXPECT_TRUE(std::isnan(element(results.lse.view(), 0))) << sink;
    EXPECT_TRUE(std::isnan(element(results.d_q.view(), 0))) << sink;
    EXPECT_TRUE(std::isnan(element(results.d_sinks.view(), 0)) || sink == -kInf) << sink;
  }
}

TEST(edge_rules, low_terms_that_sum_beyond_the_range_do_not_hide) {
  // -3.4e38 twice: below every f32, yet both keys are visible and equal.
  const std::vector<float> bias(2, -3.4e38F), table = {-3.4e38F};
  OneRow row{.q = {0}, .k = {1, 2}, .v = {1, 3}};
  row.options.bias = TensorView(bias.data(), Dims{1, 2});
  row.options.table = TensorView(table.data(), Dims{1, 1});
  row.options.buckets = {Buckets::Kind::causal, 8};
  EXPECT_EQ(element(row.run().out.view(), 0), 2);
  // A slope times a distance alone.
  const float slope = 3e38F;
  OneRow far{.q = {0}, .k = {1, 2}, .v = {1, 3}};
  far.options.slopes = TensorView(&slope, Dims{1});
  far.options.offset = 9;
  EXPECT_EQ(element(far.run().out.view(), 0), 2);
}

TEST(edge_rules, bias_of_minus_infinity_hides_a_pair_whose_slope_or_table_is_nan) {
  const std::vector<float> bias = {-kInf, -kInf};
  for (const bool in_slope : {true, false}) {
    OneRow row{.q = {1}, .k = {1, 2}, .v = {1, 3}};
    row.options.bias = TensorView(bias.data(), Dims{1, 2});
    (in_slope ? row.options.slopes : row.options.table) =
        in_slope ? TensorView(&kNan, Dims{1}) : TensorView(&kNan, Dims{1, 1});
    row.options.buckets = {Buckets::Kind::causal, 8};
    const AttentionReference results = row.run();
    EXPECT_EQ(element(results.out.view(), 0), 0);
    EXPECT_EQ(element(results.lse.view(), 0), -kInf);
    EXPECT_EQ(element(results.d_q.view(), 0), 0);
    EXPECT_EQ(element(results.d_k.view(), 0), 0);
  }
}

TEST(edge_rules, scale_below_the_range_of_f32_gives_a_uniform_row) {
  OneRow row{.q = {1}, .k = {1, 2}, .v = {1, 3}};
  for (const double scale : {1e-300, -1e-300}) {
    row.options.scale = scale;
    EXPECT_EQ(element(row.run().out.view(), 0), 2);
  }
}

TEST(edge_rules, equal_lowest_biases_give_a_uniform_row_forward_and_backward) {
  const std::vector<float> bias(4, -3.4e38F);
  OneRow row{.q = {0.5F}, .k = {1, 2, 3, 4}, .v = {1, 2, 3, 10}};
  row.options.bias = TensorView(bias.data(), Dims{1, 4});
  const AttentionReference results = row.run();
  EXPECT_EQ(element(results.out.view(), 0), 4);
  // dV is the weights: uniform. dS_j = (v_j - 4) / 4.
  for (int64_t j = 0; j < 4; ++j) {
    EXPECT_EQ(element(results.d_v.view(), j), 0.25);
    EXPECT_EQ(element(results.d_bias.view(), j), (row.v[static_cast<size_t>(j)] - 4) / 4);
  }
}

TEST(edge_rules, minus_infinity_in_a_bias_hides_and_plus_infinity_spoils_the_row) {
  std::vector<float> bias = {0, -kInf, 0};
  OneRow row{.q = {0}, .k = {1, kNan, 3}, .v = {2, kInf, 4}};
  row.options.bias = TensorView(bias.data(), Dims{1, 3});
  const AttentionReference hidden = row.run();
  EXPECT_EQ(element(hidden.out.view(), 0), 3);
  EXPECT_EQ(element(hidden.d_bias.view(), 1), 0);
  EXPECT_EQ(element(hidden.d_k.view(), 1), 0);
  bias[1] = kInf;
  row.k[1] = 2;
  row.v[1] = 1;
  EXPECT_TRUE(std::isnan(element(row.run().out.view(), 0)));
}

TEST(edge_rules, f16_scores_beyond_65504_are_finite) {
  const std::vector<Float16> q(64, to_float16(200)), v = {to_float16(1), to_float16(2)};
  std::vector<Float16> k(128, to_float16(200));
  k[64] = to_float16(100);
  const std::vector<Float16> d_out = {to_float16(1)};
  AttentionOptions options{.scale = 1};
  const AttentionReference results = run_operation({TensorView(q.data(), Dims{1, 64}),
                                                    TensorView(k.data(), Dims{2, 64}),
                                                    TensorView(v.data(), Dims{2, 1}),
                                                    TensorView(d_out.data(), Dims{1, 1}),
                                                    {},
                                                    options});
  EXPECT_EQ(element(results.out.view(), 0), 1);
  EXPECT_EQ(element(results.lse.view(), 0), 64 * 40000.0);
}

// Under a causal mask the columns that all rows of a tile see are not read from the terms: their overflowed scores once
// counted as hidden.
TEST(edge_rules, scores_that_overflow_downwards_stay_visible_under_a_causal_mask) {
  constexpr int64_t T = 100;
  const std::vector<float> q(T, 3e38F), k(T, -3e38F);
  std::vector<float> v(T), out(T), row_max(T);
  for (int64_t j = 0; j < T; ++j) v[static_cast<size_t>(j)] = static_cast<float>(j);
  const Dims shape{T, 1};
  const AttentionOptions options{.causal = Causal::top_left()};
  const MutableTensorView results(out.data(), shape);
  const AttentionState state =
      attention_forward({q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options, results);
  attention_statistics({q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options,
                       {.row_max = {row_max.data(), {T}}});
  for (int64_t i = 0; i < T; ++i) {
    EXPECT_EQ(element(state.row_sum.view(), i), static_cast<double>(i + 1)) << i;
    EXPECT_EQ(row_max[static_cast<size_t>(i)], 1.0F / static_cast<float>(i + 1)) << i;
    EXPECT_FLOAT_EQ(out[static_cast<size_t>(i)], static_cast<float>(i) / 2) << i;
  }
}

TEST(edge_rules, zero_sizes_give_empty_or_zero_results) {
  const Spec base{.seed = 2, .B = 2, .H = 2, .Hkv = 1, .Tq = 3, .Tk = 4, .D = 5, .Dv = 6, .features = kDLse};
  const auto expect_accurate = [](const Spec& spec) {
    const TestProblem problem(spec);
    const AttentionReference results = run_operation(problem);
    for (const Comparison& comparison : compare(problem, results)) EXPECT_TRUE(comparison.holds()) << comparison.text();
    return problem.spec.Tk == 0 ? elements(results.out.view()) : std::vector<double>();
  };
  Spec spec = base;
  for (int64_t Spec::*size : {&Spec::B, &Spec::Tq, &Spec::Tk, &Spec::D, &Spec::Dv}) {
    spec = base;
    spec.*size = 0;
    for (const double value : expect_accurate(spec)) EXPECT_EQ(value, 0);
  }
  spec = base;
  spec.H = spec.Hkv = 0;
  expect_accurate(spec);
}

TEST(edge_rules, any_number_of_heads_without_rows_costs_no_time) {
  const Dims no_rows{1, int64_t{1} << 40, 0, 4}, keys{1, 1, 3, 4};
  std::vector<float> none(1), values(12, 1), d_k(12, kNan), d_v(12, kNan);
  const TensorView q(none.data(), no_rows), k(values.data(), keys);
  const MutableTensorView out(none.data(), no_rows);
  const AttentionState state = attention_forward(q, k, k, {}, out);
  attention_backward(q, k, k, {}, state, out, {.k = {d_k.data(), keys}, .v = {d_v.data(), keys}});
  EXPECT_EQ(d_k, std::vector<float>(12, 0));
  EXPECT_EQ(d_v, std::vector<float>(12, 0));
}

TEST(edge_rules, sizes_whose_products_exceed_32_bits) {
  // 2^18 x 2^18 pairs, of which a window leaves few; queries, keys and values are one row each, expanded.
  constexpr int64_t T = int64_t{1} << 18;
  const std::vector<float> row = {1, 2}, values = {3};
  const Dims shape{1, 1, T, 2}, strides{0, 0, 0, 1};
  const TensorView q(row.data(), shape, strides);
  const TensorView v(values.data(), Dims{1, 1, T, 1}, Dims{0, 0, 0, 0});
  // A mask of one byte that stands for 2^36.
  const Boolean shown{1};
  AttentionOptions options{.causal = Causal::top_left(), .window = {.left = 1}};
  options.mask = TensorView(&shown, Dims{1, 1, T, T}, Dims{0, 0, 0, 0});
  const AttentionReference results = run_operation({q, q, v, v, {}, options});
  for (const int64_t i : {int64_t{0}, T / 2, T - 1}) {
    EXPECT_EQ(element(results.out.view(), i), 3);
    EXPECT_EQ(element(results.d_v.view(), i), i == 0 ? 4.5 : i == T - 1 ? 1.5 : 3);
    EXPECT_EQ(element(results.d_q.view(), i), 0);
  }
}

TEST(edge_rules, a_value_equal_to_the_output_has_no_effect_at_any_weight) {
  // Weights 1/2, 1/4, 1/4; the first value is the output.
  const float ln2 = 0.6931472F;
  const OneRow row{.q = {1}, .k = {ln2, 0, 0}, .v = {2, 1, 3}, .options = {.scale = 1}};
  std::vector<float> bias(3, 0);
  OneRow with_bias = row;
  with_bias.options.bias = TensorView(bias.data(), Dims{1, 3});
  const AttentionReference results = with_bias.run();
  EXPECT_NEAR(element(results.d_bias.view(), 0), 0, 4 * 0x1p-24 * 2);
  EXPECT_NEAR(element(results.d_bias.view(), 1), -0.25, 4 * 0x1p-24 * 2);
  EXPECT_NEAR(element(results.d_bias.view(), 2), 0.25, 4 * 0x1p-24 * 2);
}

}  // namespace
}  // namespace qkv::test
