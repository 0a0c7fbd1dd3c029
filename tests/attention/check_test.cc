// SPDX-License-Identifier: Apache-2.0
//
// What the check makes of right calls, those at the edge included, and what it says of wrong results.
#include "attention/check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attention/check_calls.h"
#include "qkv/attention/reference.h"
#include "qkv/tensor/tensor.h"

namespace qkv {
namespace {

TEST(check, the_call_that_the_cases_spoil_is_right) {
  Call call;
  EXPECT_NO_THROW(check_problem(call.q, call.k, call.v, call.options));
  call.pack({0, 1, 3}, {0, 5, 5});
  EXPECT_NO_THROW(check_problem(call.q, call.k, call.v, call.options));
}

TEST(check, wrong_results_and_upstream_gradients) {
  const Call call;
  const Problem problem = check_problem(call.q, call.k, call.v, call.options);
  const auto like = [&](const TensorView& view) {
    return message_of([&] { check_like(problem, view, "out", Rows::queries, problem.H, problem.Dv, 4); });
  };
  EXPECT_EQ(like({}), "attention: out of shape [2, 4, 3, 6] is needed, none came");
  EXPECT_EQ(like(Call::view(DType::f32, {2, 4, 3, 8})), "attention: out must be [2, 4, 3, 6], got [2, 4, 3, 8]");
  EXPECT_EQ(like(Call::view(DType::f32, {4, 3, 6})), "attention: out must be [2, 4, 3, 6], got [4, 3, 6]");
  EXPECT_EQ(like(Call::view(DType::f16, {2, 4, 3, 6})), "attention: out must be f32, got f16");
  const auto per_row = [&](const TensorView& view) {
    return message_of([&] { check_per_row(problem, view, "lse", 4); });
  };
  EXPECT_EQ(per_row(Call::view(DType::f32, {2, 4, 5})), "attention: lse must be [2, 4, 3], got [2, 4, 5]");
  EXPECT_EQ(per_row(Call::view(DType::f64, {2, 4, 3})), "attention: lse must be f32, got f64");
  const auto twin = [&](const TensorView& view, const TensorView& bias) {
    return message_of([&] { check_twin(view, "d_bias", bias, "bias"); });
  };
  const TensorView bias = Call::view(DType::f32, {1, 4, 1, 5});
  EXPECT_EQ(twin(bias, {}), "attention: d_bias came without bias");
  EXPECT_EQ(twin(Call::view(DType::f32, {4, 5}), bias), "attention: d_bias must be [1, 4, 1, 5], got [4, 5]");
  EXPECT_EQ(twin(Call::view(DType::bf16, {1, 4, 1, 5}), bias), "attention: d_bias must be f32, got bf16");
  const auto scale = [&](const TensorView& view) {
    return message_of([&] { check_scale_twin(problem, view, "d_scale"); });
  };
  EXPECT_EQ(scale(Call::view(DType::f32, {2})), "attention: d_scale must be [1] or [], got [2]");
  EXPECT_EQ(scale(Call::view(DType::f64, {1})), "attention: d_scale must be f32, got f64");
  EXPECT_EQ(message_of([&] {
              attention_reference(call.q, call.k, call.v, call.options, Arithmetic::plain, {},
                                  Call::view(DType::f32, {2, 4, 3}));
            }),
            "attention: d_lse came without d_out");
}

TEST(check, outputs_that_overlap) {
  Tensor memory(DType::f32, {100});
  const auto part = [&](int64_t begin, int64_t count) {
    return TensorView(DType::f32, memory.view().at(begin), {count});
  };
  const auto overlapping = [&](const TensorView& q, const AttentionOptions& options, const TensorView& out,
                               const TensorView& lse) {
    return message_of([&] { check_overlap({{"q", q}}, options, {{"out", out}, {"lse", lse}}); });
  };
  EXPECT_EQ(overlapping(part(0, 50), {}, part(49, 10), {}), "attention: out overlaps q");
  EXPECT_EQ(overlapping(part(0, 50), {}, part(50, 10), part(59, 2)), "attention: lse overlaps out");
  EXPECT_EQ(overlapping(part(0, 50), {.sinks = part(70, 4)}, part(50, 10), part(70, 1)),
            "attention: lse overlaps sinks");
  EXPECT_EQ(overlapping(part(0, 50), {}, {DType::f32, memory.view().at(50), {2, 2}, {1, 1}}, {}),
            "attention: out overlaps itself, strides [1, 1]");
  EXPECT_EQ(overlapping(part(0, 50), {}, part(50, 10), part(60, 2)), "nothing was thrown");
}

/// A problem that is right, for calls at the edge.
Problem accepted(const Call& call) { return check_problem(call.q, call.k, call.v, call.options); }

TEST(check, lower_ranks_mean_one_batch_entry_and_one_head) {
  Call call;
  call.q = Call::view(DType::bf16, {3, 8});
  call.k = Call::view(DType::bf16, {5, 8});
  call.v = Call::view(DType::bf16, {5, 6});
  call.options.bias = Call::view(DType::f32, {1, 1, 3, 5});
  call.options.mask = Call::view(DType::boolean, {3, 1});
  call.options.key_lengths = call.integers({4});
  call.options.query_segment = Call::view(DType::i64, {1, 3});
  call.options.key_segment = Call::view(DType::i64, {1, 5});
  call.options.slopes = Call::view(DType::f32, {1});
  const Problem problem = accepted(call);
  EXPECT_EQ(problem.B, 1);
  EXPECT_EQ(problem.H, 1);
  EXPECT_EQ(problem.Hkv, 1);
  EXPECT_EQ(problem.Tq, 3);
  EXPECT_EQ(problem.Tk, 5);
  EXPECT_EQ(problem.sequence(0).key_length, 4);
  EXPECT_EQ(problem.mask.stride[3], 0);
  EXPECT_EQ(problem.bias.stride[2], 5);
  EXPECT_DOUBLE_EQ(problem.scale, 1 / std::sqrt(8.0));
}

TEST(check, every_size_may_be_zero_without_memory) {
  for (int axis = 0; axis < 4; ++axis) {
    Dims q = {2, 4, 3, 8};
    Dims k = {2, 2, 5, 8};
    q[axis] = 0;
    if (axis != 2) k[axis] = 0;
    Call call;
    call.q = {DType::f32, nullptr, q};
    call.k = axis == 2 ? Call::view(DType::f32, k) : TensorView(DType::f32, nullptr, k);
    call.v = call.k;
    EXPECT_TRUE(static_cast<bool>(accepted(call).q)) << "present, though it has no memory";
  }
  Call no_keys;
  no_keys.k = {DType::f32, nullptr, {2, 2, 0, 8}};
  no_keys.v = {DType::f32, nullptr, {2, 2, 0, 6}};
  no_keys.options.mask = {DType::boolean, nullptr, {1, 1, 3, 0}};
  EXPECT_TRUE(static_cast<bool>(accepted(no_keys).mask));
  Call no_query_heads;  // of two key heads: nothing is read, their gradients are zero
  no_query_heads.q = {DType::f32, nullptr, {2, 0, 3, 8}};
  EXPECT_EQ(accepted(no_query_heads).group(), 0);
  Call no_sequences;
  no_sequences.pack({0}, {0});
  no_sequences.q = {DType::f32, nullptr, {0, 4, 8}};
  no_sequences.k = {DType::f32, nullptr, {0, 2, 8}};
  no_sequences.v = {DType::f32, nullptr, {0, 2, 6}};
  EXPECT_EQ(accepted(no_sequences).B, 0);
  Call no_width;
  no_width.q = {DType::f32, nullptr, {2, 4, 3, 0}};
  no_width.k = {DType::f32, nullptr, {2, 2, 5, 0}};
  EXPECT_EQ(accepted(no_width).scale, 1);
}

TEST(check, numbers_at_their_ends_are_right) {
  Call call;
  call.options.scale = 0;
  call.options.softcap = 1e-30;
  call.options.dropout = 1 - 0x1p-53;
  call.options.seed = 0;
  call.options.threads = 4096;
  call.options.offset = -kFar;
  call.options.window = {INT64_MAX, 0};
  const Problem problem = accepted(call);
  EXPECT_EQ(problem.scale, 0);
  EXPECT_EQ(problem.sequence(1).offset, -kFar);
  EXPECT_LE(*problem.window_left, int64_t{1} << 62) << "a far side must leave room for a position beside it";
  call.q = Call::view(DType::f64, {2, 4, 3, 8});
  call.k = Call::view(DType::f64, {2, 2, 5, 8});
  call.v = Call::view(DType::f64, {2, 2, 5, 6});
  call.options.scale = 1e39;
  EXPECT_EQ(accepted(call).scale, 1e39) << "f64 holds it";
}

TEST(check, offsets_are_resolved_per_sequence) {
  Call call;
  call.options.causal = Causal::bottom_right();
  EXPECT_EQ(accepted(call).sequence(1).offset, 2);
  call.options.causal = Causal::top_left();
  EXPECT_EQ(accepted(call).sequence(1).offset, 0);
  call.options.causal = Causal::with_offset(-4);
  EXPECT_EQ(accepted(call).sequence(0).offset, -4);
  call.options.causal = Causal::with_offsets();
  call.options.offsets = call.integers({7, -9});
  EXPECT_EQ(accepted(call).sequence(0).offset, 7);
  EXPECT_EQ(accepted(call).sequence(1).offset, -9);
  call.options.causal = {};
  EXPECT_EQ(accepted(call).sequence(1).offset, -9) << "offsets place queries without a causal mask too";
  EXPECT_FALSE(accepted(call).causal);
  Call packed;
  packed.pack({0, 1, 3}, {0, 5, 5});
  packed.options.causal = Causal::bottom_right();
  EXPECT_EQ(accepted(packed).sequence(0).offset, 4);
  EXPECT_EQ(accepted(packed).sequence(1).offset, -2);
}

TEST(check, bottom_right_is_of_the_tensors_not_of_the_lengths) {
  Call call;
  call.options.causal = Causal::bottom_right();
  call.options.key_lengths = call.integers({1, 2});
  EXPECT_EQ(accepted(call).sequence(0).offset, 2);
}

TEST(check, integers_are_read_through_strides_and_both_widths) {
  Call call;
  const int64_t wide[] = {9, 9, 3, 9, 9, 1, 9};
  call.options.key_lengths = {&wide[5], {2}, {-3}};
  EXPECT_EQ(accepted(call).sequence(0).key_length, 1);
  EXPECT_EQ(accepted(call).sequence(1).key_length, 3);
  const int32_t narrow[] = {2, -1, 0};
  call.options.query_lengths = {&narrow[0], {2}, {2}};
  EXPECT_EQ(accepted(call).sequence(0).query_length, 2);
  EXPECT_EQ(accepted(call).sequence(1).query_length, 0);
  const int64_t shared = 2;
  call.options.key_lengths = {&shared, {2}, {0}};
  EXPECT_EQ(accepted(call).sequence(1).key_length, 2);
}

TEST(check, nan_in_sinks_and_slopes_is_data) {
  const float values[] = {static_cast<float>(kNan), 0, 0, 0};
  Call call;
  call.options.sinks = call.options.slopes = {values, {4}};
  EXPECT_NO_THROW(accepted(call));
}

TEST(check, packed_rows_count_through_all_sequences) {
  Call call;
  call.pack({0, 1, 3}, {0, 2, 5});
  const Problem problem = accepted(call);
  EXPECT_EQ(problem.B, 2);
  EXPECT_EQ(problem.sequence(1).Tq, 2);
  EXPECT_EQ(problem.sequence(1).Tk, 3);
  EXPECT_EQ(problem.q.at(1, 3, problem.sequence(1).q_begin + 1, 0),
            static_cast<const char*>(call.q.data()) + 4 * (2 * 32 + 3 * 8));
  EXPECT_EQ(problem.k.at(1, 1, problem.sequence(1).k_begin + 2, 0),
            static_cast<const char*>(call.k.data()) + 4 * (4 * 16 + 1 * 8));
  EXPECT_EQ(problem.row_index(1, 3) + problem.row_step(), (1 + 1) * 4 + 3);
}

}  // namespace
}  // namespace qkv
