// SPDX-License-Identifier: Apache-2.0
//
// The reference against the edge rules and identities of the semantics. Where two evaluations do the same sums in the
// same order they must give the same bits.
#include "qkv/attention/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "attention/reference_head.h"
#include "problems.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionReference evaluate(const TestProblem& problem, Arithmetic arithmetic) {
  return attention_reference(problem.q, problem.k, problem.v, problem.options, arithmetic, problem.d_out,
                             problem.d_lse);
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void expect_same_tensor(const char* what, const Tensor& a, const Tensor& b) {
  ASSERT_EQ(static_cast<bool>(a), static_cast<bool>(b)) << what;
  if (!a) return;
  ASSERT_EQ(a.shape(), b.shape()) << what;
  for (int64_t i = 0; i < a.view().elements(); ++i) {
    ASSERT_TRUE(same(element(a.view(), i), element(b.view(), i)))
        << what << "[" << i << "]: " << element(a.view(), i) << " and " << element(b.view(), i);
  }
}

void expect_same(const AttentionReference& a, const AttentionReference& b) {
  expect_same_tensor("out", a.out, b.out);
  expect_same_tensor("lse", a.lse, b.lse);
  expect_same_tensor("d_q", a.d_q, b.d_q);
  expect_same_tensor("d_k", a.d_k, b.d_k);
  expect_same_tensor("d_v", a.d_v, b.d_v);
  expect_same_tensor("d_bias", a.d_bias, b.d_bias);
  expect_same_tensor("d_slopes", a.d_slopes, b.d_slopes);
  expect_same_tensor("d_table", a.d_table, b.d_table);
  expect_same_tensor("d_sinks", a.d_sinks, b.d_sinks);
  expect_same_tensor("d_scale", a.d_scale, b.d_scale);
}

constexpr Arithmetic kBoth[] = {Arithmetic::reference, Arithmetic::plain};

TEST(reference, what_is_hidden_cannot_leak) {
  int64_t poisoned = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Spec spec = random_spec(seed, 33);
    spec.features |= kKeyLengths;
    if (spec.layout == Layout::expanded) spec.layout = Layout::padded;
    if (spec.values == Values::huge) spec.values = Values::normal;
    TestProblem problem(compatible(spec));
    SCOPED_TRACE(name(problem.spec));
    const AttentionReference reference = evaluate(problem, Arithmetic::reference);
    const AttentionReference plain = evaluate(problem, Arithmetic::plain);
    poisoned += problem.poison_hidden();
    expect_same(reference, evaluate(problem, Arithmetic::reference));
    expect_same(plain, evaluate(problem, Arithmetic::plain));
  }
  EXPECT_GT(poisoned, 500);
}

void set(const TensorView& view, int64_t index, double value) {
  store_from_double(view.dtype(), const_cast<void*>(element_address(view, index)), value);
}

/// Rows of [rows, width] that hold a NaN; every other one must hold none and be as before.
std::vector<bool> rows_made_nan(const Tensor& before, const Tensor& after, int64_t width) {
  std::vector<bool> made(static_cast<size_t>(before.view().elements() / width), false);
  for (int64_t i = 0; i < before.view().elements(); ++i) {
    const bool nan = std::isnan(element(after.view(), i));
    if (nan) made[static_cast<size_t>(i / width)] = true;
    EXPECT_TRUE(nan || element(after.view(), i) == element(before.view(), i));
  }
  return made;
}

TEST(reference, a_nan_query_makes_its_row_nan_and_no_other) {
  for (const Arithmetic arithmetic : kBoth) {
    TestProblem problem({.H = 1, .Hkv = 1, .Tq = 6, .Tk = 9, .features = kCausalBottomRight | kDLse});
    const AttentionReference before = evaluate(problem, arithmetic);
    set(problem.q, 2 * 8 + 3, kNan);
    const AttentionReference after = evaluate(problem, arithmetic);
    const std::vector<bool> only_row_2 = {false, false, true, false, false, false};
    EXPECT_EQ(rows_made_nan(before.out, after.out, 8), only_row_2);
    EXPECT_EQ(rows_made_nan(before.lse, after.lse, 1), only_row_2);
    EXPECT_EQ(rows_made_nan(before.d_q, after.d_q, 8), only_row_2);
    // Key 5 is the last one that row 2 sees.
    const std::vector<double> d_k = elements(after.d_k.view());
    EXPECT_TRUE(std::isnan(d_k[5 * 8]));
    EXPECT_FALSE(std::isnan(d_k[6 * 8]));
  }
}

TEST(reference, a_nan_key_or_value_makes_the_rows_nan_that_see_it) {
  for (const Arithmetic arithmetic : kBoth) {
    for (const bool in_key : {true, false}) {
      TestProblem problem({.H = 1, .Hkv = 1, .Tq = 6, .Tk = 6, .features = kCausalTopLeft});
      const AttentionReference before = evaluate(problem, arithmetic);
      set(in_key ? problem.k : problem.v, 3 * 8, kNan);
      const AttentionReference after = evaluate(problem, arithmetic);
      EXPECT_EQ(rows_made_nan(before.out, after.out, 8), (std::vector<bool>{false, false, false, true, true, true}));
    }
  }
}

TEST(reference, a_bias_of_plus_infinity_makes_its_row_nan_and_minus_infinity_hides) {
  for (const Arithmetic arithmetic : kBoth) {
    std::vector<float> bias(3 * 4, 0);
    TestProblem problem({.H = 1, .Hkv = 1, .Tq = 3, .Tk = 4});
    problem.options.bias = {bias.data(), {1, 1, 3, 4}};
    const AttentionReference before = evaluate(problem, arithmetic);
    bias[4 + 2] = std::numeric_limits<float>::infinity();
    const AttentionReference infinite = evaluate(problem, arithmetic);
    EXPECT_EQ(rows_made_nan(before.out, infinite.out, 8), (std::vector<bool>{false, true, false}));
    for (size_t i = 0; i < 3; ++i) bias[4 * i + 1] = -std::numeric_limits<float>::infinity();
    bias[4 + 2] = 0;
    set(problem.k, 8, kNan);
    set(problem.v, 8, kNan);
    const AttentionReference hidden = evaluate(problem, arithmetic);
    for (const double x : elements(hidden.out.view())) EXPECT_TRUE(std::isfinite(x));
    for (const double x : elements(hidden.d_q.view())) EXPECT_TRUE(std::isfinite(x));
    for (size_t c = 0; c < 8; ++c) EXPECT_EQ(elements(hidden.d_v.view())[8 + c], 0);
  }
}

TEST(reference, equal_biases_of_the_largest_magnitude_are_a_uniform_row_forward_and_backward) {
  for (const Arithmetic arithmetic : kBoth) {
    const std::vector<float> bias(4, std::numeric_limits<float>::lowest());
    TestProblem problem({.H = 1, .Hkv = 1, .Tq = 1, .Tk = 4});
    problem.options.scale = 0;
    problem.options.bias = {bias.data(), {1, 1, 1, 4}};
    const AttentionReference result = evaluate(problem, arithmetic);
    const std::vector<double> d_v = elements(result.d_v.view());
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t c = 0; c < 8; ++c) {
        EXPECT_EQ(d_v[static_cast<size_t>(8 * j + c)], 0.25 * element(problem.d_out, c));
      }
    }
  }
}

TEST(reference, f16_scores_beyond_its_range_give_finite_results) {
  TestProblem problem({.dtype = DType::f16, .Tq = 20, .Tk = 30, .D = 64, .Dv = 16, .values = Values::huge});
  problem.options.scale = 1;
  for (const Arithmetic arithmetic : kBoth) {
    const AttentionReference result = evaluate(problem, arithmetic);
    double largest = 0;
    for (const double x : elements(result.lse.view())) largest = std::max(largest, x);
    EXPECT_GT(largest, 65504);
    for (const double x : elements(result.out.view())) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(reference, every_size_may_be_zero) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (int zero = 0; zero < 6; ++zero) {
      Spec spec = {.dtype = dtype, .B = 2, .H = 4, .Hkv = 2, .features = kSinks | kBias | kMask | kDLse};
      if (zero == 0) spec.B = 0;
      if (zero == 1) spec.H = spec.Hkv = 0;
      if (zero == 2) spec.Tq = 0;
      if (zero == 3) spec.Tk = 0;
      if (zero == 4) spec.D = 0;
      if (zero == 5) spec.Dv = 0;
      const TestProblem problem(spec);
      const AttentionReference result = evaluate(problem, Arithmetic::reference);
      EXPECT_EQ(result.out.shape(), problem.out_shape());
      EXPECT_EQ(result.lse.shape(), problem.lse_shape());
      for (const double x : elements(result.d_k.view())) EXPECT_TRUE(std::isfinite(x));
      if (zero == 3) {
        for (const double x : elements(result.out.view())) EXPECT_EQ(x, 0);
      }
    }
  }
}

TEST(reference, no_query_heads_give_zero_gradients_of_keys) {
  const TestProblem problem({.H = 0, .Hkv = 2});
  for (const double x : elements(evaluate(problem, Arithmetic::reference).d_k.view())) EXPECT_EQ(x, 0);
}

TEST(reference, the_layout_does_not_change_a_bit) {
  const uint32_t features = kBias | kMask | kSinks | kSlopes | kTable | kKeyLengths | kSegments | kDLse;
  Spec spec = {.seed = 3, .B = 2, .H = 4, .Hkv = 2, .Tq = 9, .Tk = 11, .D = 5, .Dv = 3, .features = features};
  const AttentionReference contiguous = evaluate(TestProblem(spec), Arithmetic::plain);
  for (const Layout layout :
       {Layout::token_major, Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
    spec.layout = layout;
    SCOPED_TRACE(name(spec));
    expect_same(contiguous, evaluate(TestProblem(spec), Arithmetic::plain));
  }
}

TEST(reference, threads_do_not_change_a_bit) {
  for (const uint32_t features : {uint32_t{0}, kBias | kSinks | kTable, kPacked | kSlopes | kDropout}) {
    Spec spec = {.seed = 5, .B = 3, .H = 4, .Hkv = 2, .Tq = 9, .Tk = 11, .features = features};
    const AttentionReference alone = evaluate(TestProblem(spec), Arithmetic::plain);
    for (const int threads : {2, 3, 8}) {
      spec.threads = threads;
      expect_same(alone, evaluate(TestProblem(spec), Arithmetic::plain));
    }
  }
}

/// Elements of rows [begin, end) of one entry along the first axes of a view.
TensorView slice(const TensorView& view, int axis, int64_t begin, int64_t count) {
  Dims shape = view.shape();
  shape[axis] = count;
  return {view.dtype(), view.at(begin * view.stride(axis)), shape, view.strides()};
}

/// [T, heads, width] as [heads, T, width].
TensorView heads_first(const TensorView& view) {
  return {view.dtype(),
          view.data(),
          {view.size(1), view.size(0), view.size(2)},
          {view.stride(1), view.stride(0), view.stride(2)}};
}

TEST(reference, packed_sequences_equal_each_sequence_alone) {
  for (const uint32_t features : {uint32_t{0}, uint32_t{kCausalBottomRight}, kWindow | kOffsets, kSinks | kTable}) {
    const TestProblem packed(
        {.seed = 11, .B = 4, .H = 4, .Hkv = 2, .Tq = 21, .Tk = 30, .D = 5, .Dv = 3, .features = features | kPacked});
    const AttentionReference together = evaluate(packed, Arithmetic::plain);
    for (int64_t s = 0; s < 4; ++s) {
      const auto cut = [&](const TensorView& view, const TensorView& starts) {
        const int64_t begin = static_cast<int64_t>(element(starts, s));
        return heads_first(slice(view, 0, begin, static_cast<int64_t>(element(starts, s + 1)) - begin));
      };
      AttentionOptions options = packed.options;
      options.query_starts = options.key_starts = {};
      if (options.offsets) options.offsets = slice(options.offsets, 0, s, 1);
      const AttentionReference alone =
          attention_reference(cut(packed.q, packed.options.query_starts), cut(packed.k, packed.options.key_starts),
                              cut(packed.v, packed.options.key_starts), options, Arithmetic::plain,
                              cut(packed.d_out, packed.options.query_starts));
      using Member = Tensor AttentionReference::*;
      using StartsMember = TensorView AttentionOptions::*;
      for (const auto& [member, starts] :
           {std::pair<Member, StartsMember>{&AttentionReference::out, &AttentionOptions::query_starts},
            {&AttentionReference::d_q, &AttentionOptions::query_starts},
            {&AttentionReference::d_k, &AttentionOptions::key_starts},
            {&AttentionReference::d_v, &AttentionOptions::key_starts}}) {
        EXPECT_EQ(elements((alone.*member).view()), elements(cut((together.*member).view(), packed.options.*starts)));
      }
    }
  }
}

TEST(reference, query_head_h_reads_key_head_h_over_group_and_gradients_sum_over_the_group) {
  const TestProblem problem({.seed = 2, .dtype = DType::f64, .H = 6, .Hkv = 2, .Tq = 5, .Tk = 7});
  const AttentionReference grouped = evaluate(problem, Arithmetic::plain);
  std::vector<double> d_k(static_cast<size_t>(problem.k.elements()), 0);
  for (int64_t h = 0; h < 6; ++h) {
    const AttentionReference alone =
        attention_reference(slice(problem.q, 1, h, 1), slice(problem.k, 1, h / 3, 1), slice(problem.v, 1, h / 3, 1),
                            problem.options, Arithmetic::plain, slice(problem.d_out, 1, h, 1));
    EXPECT_EQ(elements(alone.out.view()), elements(slice(grouped.out.view(), 1, h, 1)));
    EXPECT_EQ(elements(alone.d_q.view()), elements(slice(grouped.d_q.view(), 1, h, 1)));
    const std::vector<double> part = elements(alone.d_k.view());
    for (size_t i = 0; i < part.size(); ++i) d_k[static_cast<size_t>(h / 3) * part.size() + i] += part[i];
  }
  const std::vector<double> summed = elements(grouped.d_k.view());
  for (size_t i = 0; i < d_k.size(); ++i) EXPECT_NEAR(summed[i], d_k[i], 8 * 0x1p-52 * (1 + std::fabs(d_k[i])));
}

TEST(reference, a_chunk_of_queries_at_its_offset_equals_its_rows_of_the_whole) {
  for (const uint32_t features : {uint32_t{kSlopes}, kWindow | kTable, uint32_t{kDropout}}) {
    const TestProblem problem({.seed = 4, .H = 2, .Hkv = 1, .Tq = 12, .Tk = 12, .features = features});
    const AttentionReference whole = evaluate(problem, Arithmetic::plain);
    AttentionOptions options = problem.options;
    options.offset = 7;
    const AttentionReference chunk =
        attention_reference(slice(problem.q, 2, 7, 5), problem.k, problem.v, options, Arithmetic::plain);
    EXPECT_EQ(elements(chunk.out.view()), elements(slice(whole.out.view(), 2, 7, 5)));
  }
}

TEST(reference, dropout_scales_what_it_keeps_and_leaves_lse_alone) {
  const int64_t keys = 4000;
  TestProblem problem({.H = 1, .Hkv = 1, .Tq = 3, .Tk = keys, .D = 1, .Dv = 1});
  for (int64_t j = 0; j < keys; ++j) set(problem.v, j, 1);
  problem.options.scale = 0;  // uniform weights: out is the share that is kept, over 1 - p
  const AttentionReference without = evaluate(problem, Arithmetic::reference);
  for (const double p : {0.1, 0.5, 0.9}) {
    problem.options.dropout = p;
    problem.options.seed = 99;
    const AttentionReference with = evaluate(problem, Arithmetic::reference);
    EXPECT_EQ(elements(with.lse.view()), elements(without.lse.view()));
    std::vector<double> out = elements(with.out.view());
    for (const double share : out) {
      EXPECT_NEAR(share, 1, 6 * std::sqrt(p / (1 - p) / static_cast<double>(keys)));
      const double kept = share * (1 - p) * static_cast<double>(keys);
      EXPECT_NEAR(kept, std::round(kept), 1e3 * static_cast<double>(keys) * 0x1p-52);
    }
    EXPECT_NE(out[0], out[1]) << "rows have patterns of their own";
  }
}

TEST(reference, a_constant_added_to_all_scores_moves_lse_only) {
  const TestProblem problem({.seed = 9, .dtype = DType::f64, .Tq = 6, .Tk = 20});
  AttentionOptions shifted = problem.options;
  const double constant = 3;
  shifted.bias = {&constant, {1, 1, 1, 1}};
  const AttentionReference before = evaluate(problem, Arithmetic::reference);
  const AttentionReference after =
      attention_reference(problem.q, problem.k, problem.v, shifted, Arithmetic::reference, problem.d_out);
  for (int64_t i = 0; i < before.out.view().elements(); ++i) {
    EXPECT_NEAR(element(after.out.view(), i), element(before.out.view(), i), 16 * 0x1p-52);
  }
  for (int64_t i = 0; i < before.lse.view().elements(); ++i) {
    EXPECT_NEAR(element(after.lse.view(), i), element(before.lse.view(), i) + 3, 16 * 0x1p-52);
  }
  // The sum over all keys of dS is zero, and so is its gradient: rows of a softmax ignore a shift.
  EXPECT_NEAR(element(after.d_bias.view(), 0), 0, 1e3 * 0x1p-52);
}

TEST(reference, results_have_the_shapes_of_q_k_and_v_at_every_rank) {
  for (const int rank : {2, 3, 4}) {
    const TestProblem problem({.rank = rank, .H = 4, .Hkv = 2, .Tq = 5, .Tk = 7, .D = 3, .Dv = 6});
    const AttentionReference result = evaluate(problem, Arithmetic::plain);
    EXPECT_EQ(result.out.shape(), problem.out_shape());
    EXPECT_EQ(result.lse.shape(), problem.lse_shape());
    EXPECT_EQ(result.d_q.shape(), problem.q.shape());
    EXPECT_EQ(result.d_k.shape(), problem.k.shape());
    EXPECT_EQ(result.d_v.shape(), problem.v.shape());
    EXPECT_EQ(result.d_scale.shape(), Dims({1}));
  }
}

TEST(reference, results_have_the_dtypes_that_the_operation_stores) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const DType number = dtype == DType::f64 ? DType::f64 : DType::f32;
    const TestProblem problem({.dtype = dtype, .features = kBias | kSinks | kTable | kSlopes});
    const AttentionReference plain = evaluate(problem, Arithmetic::plain);
    for (const Tensor* tensor : {&plain.out, &plain.d_q, &plain.d_k, &plain.d_v}) EXPECT_EQ(tensor->dtype(), dtype);
    EXPECT_EQ(plain.d_bias.dtype(), problem.options.bias.dtype());
    for (const Tensor* tensor : {&plain.lse, &plain.d_sinks, &plain.d_table, &plain.d_slopes, &plain.d_scale}) {
      EXPECT_EQ(tensor->dtype(), number);
    }
    const AttentionReference reference = evaluate(problem, Arithmetic::reference);
    EXPECT_EQ(reference.out.dtype(), DType::f64);
    EXPECT_EQ(reference.d_bias.dtype(), DType::f64);
    EXPECT_EQ(reference.d_sinks.dtype(), DType::f64);
  }
}

TEST(reference, the_one_rounding_of_a_factor_neither_overflows_nor_flushes) {
  using definition::round_factor;
  EXPECT_EQ(round_factor(DType::f32, 1.0f + 0x1p-20f), 1.0f + 0x1p-20f);
  EXPECT_EQ(round_factor(DType::f16, 1.0f + 0x1p-20f), 1.0f);
  EXPECT_EQ(round_factor(DType::bf16, 1.0f + 0x1p-7f), 1.0f + 0x1p-7f);
  EXPECT_EQ(round_factor(DType::bf16, 1.0f + 0x1p-8f), 1.0f) << "ties go to even";
  EXPECT_EQ(round_factor(DType::bf16, 1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f) << "ties go to even";
  EXPECT_EQ(round_factor(DType::f16, 1e-30f + 1e-36f), round_factor(DType::f16, 1e-30f));
  EXPECT_NEAR(round_factor(DType::f16, 1e-30f), 1e-30f, 1e-30f * 0x1p-11f) << "below f16's smallest, kept";
  EXPECT_NEAR(round_factor(DType::f16, -1e30f), -1e30f, 1e30f * 0x1p-11f) << "beyond f16's largest, kept";
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(round_factor(DType::bf16, largest), largest);
  EXPECT_EQ(round_factor(DType::bf16, static_cast<float>(kInfinity)), static_cast<float>(kInfinity));
  EXPECT_TRUE(std::isnan(round_factor(DType::bf16, static_cast<float>(kNan))));
}

}  // namespace
}  // namespace qkv::test
