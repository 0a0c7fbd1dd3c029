// SPDX-License-Identifier: Apache-2.0
//
// What wrong calls of the derivatives are told, and that nothing is written before.
#include <gtest/gtest.h>

#include "attention/check_calls.h"
#include "qkv/attention/derivatives.h"
#include "qkv/tensor/tensor.h"

namespace qkv {
namespace {

/// A right call of forward mode; cases spoil it.
struct JvpCall : Call {
  Tensor out{DType::f32, {2, 4, 3, 6}}, t_out{DType::f32, {2, 4, 3, 6}}, t_lse{DType::f32, {2, 4, 3}};
  AttentionTangents tangents = {};
  MutableTensorView to_out = t_out.mutable_view(), to_lse = t_lse.mutable_view();

  std::string message() {
    return message_of([&] {
      const AttentionState state = attention_forward(q, k, v, options, out.mutable_view());
      attention_jvp(q, k, v, options, state, tangents, to_out, to_lse);
    });
  }
};

TEST(derivatives_check, the_jvp_call_that_the_cases_spoil_is_right) {
  JvpCall call;
  call.tangents = {.q = call.q, .k = call.k, .v = call.v, .scale = Call::view(DType::f32, {1})};
  EXPECT_EQ(call.message(), "nothing was thrown");
  call.to_out = {};
  call.to_lse = {};
  EXPECT_EQ(call.message(), "nothing was thrown");
}

TEST(derivatives_check, wrong_tangents) {
  const auto with = [](AttentionTangents tangents) {
    JvpCall call;
    call.tangents = tangents;
    return call.message();
  };
  const auto f32 = [](const Dims& shape) { return Call::view(DType::f32, shape); };
  EXPECT_EQ(with({.q = f32({2, 4, 3, 6})}), "attention: t_q must be [2, 4, 3, 8], got [2, 4, 3, 6]");
  EXPECT_EQ(with({.k = f32({2, 4, 5, 8})}), "attention: t_k must be [2, 2, 5, 8], got [2, 4, 5, 8]");
  EXPECT_EQ(with({.v = Call::view(DType::f16, {2, 2, 5, 6})}), "attention: t_v must be f32, got f16");
  EXPECT_EQ(with({.bias = f32({1, 1, 3, 5})}), "attention: t_bias came without bias");
  EXPECT_EQ(with({.slopes = f32({4})}), "attention: t_slopes came without slopes");
  EXPECT_EQ(with({.table = f32({4, 8})}), "attention: t_table came without table");
  EXPECT_EQ(with({.sinks = f32({4})}), "attention: t_sinks came without sinks");
  EXPECT_EQ(with({.scale = f32({2})}), "attention: t_scale must be [1] or [], got [2]");
}

TEST(derivatives_check, wrong_results_of_forward_mode) {
  JvpCall call;
  Tensor wide(DType::f32, {2, 4, 3, 8});
  call.to_out = wide.mutable_view();
  EXPECT_EQ(call.message(), "attention: t_out must be [2, 4, 3, 6], got [2, 4, 3, 8]");
  call.to_out = call.out.mutable_view();
  EXPECT_EQ(call.message(), "attention: t_out overlaps state.out");
  call.to_out = call.t_out.mutable_view();
  call.tangents.v = Call::view(DType::f32, {2, 2, 5, 6});
  call.tangents.q = TensorView(DType::f32, wide.view().data(), {2, 4, 3, 8});
  call.to_lse = MutableTensorView(DType::f32, wide.mutable_view().data(), {2, 4, 3});
  EXPECT_EQ(call.message(), "attention: t_lse overlaps t_q");
}

TEST(derivatives_check, a_state_of_another_problem) {
  JvpCall call;
  Tensor out(DType::f32, {2, 4, 2, 6});
  const AttentionState state =
      attention_forward(Call::view(DType::f32, {2, 4, 2, 8}), call.k, call.v, call.options, out.mutable_view());
  EXPECT_EQ(
      message_of([&] { attention_jvp(call.q, call.k, call.v, call.options, state, {}, call.to_out, call.to_lse); }),
      "attention: state.row_max must be [2, 4, 3], got [2, 4, 2]");
}

/// A right call of second order; cases spoil it.
struct SecondCall : Call {
  Tensor out{DType::f32, {2, 4, 3, 6}};
  Tensor g_q{DType::f32, {2, 4, 3, 8}}, g_k{DType::f32, {2, 2, 5, 8}}, g_v{DType::f32, {2, 2, 5, 6}};
  TensorView d_out = Call::view(DType::f32, {2, 4, 3, 6});
  AttentionCotangents cotangents = {.q = q, .k = k, .v = v};
  AttentionSecondGradients gradients = {.q = g_q.mutable_view(), .k = g_k.mutable_view(), .v = g_v.mutable_view()};

  std::string message() {
    return message_of([&] {
      const AttentionState state = attention_forward(q, k, v, options, out.mutable_view());
      attention_second_order(q, k, v, options, state, d_out, cotangents, gradients);
    });
  }
};

TEST(derivatives_check, the_second_order_call_that_the_cases_spoil_is_right) {
  EXPECT_EQ(SecondCall().message(), "nothing was thrown");
}

TEST(derivatives_check, wrong_calls_of_second_order) {
  const auto with = [](const std::function<void(SecondCall&)>& spoil) {
    SecondCall call;
    spoil(call);
    return call.message();
  };
  const auto f32 = [](const Dims& shape) { return Call::view(DType::f32, shape); };
  EXPECT_EQ(with([&](SecondCall& call) { call.d_out = {}; }),
            "attention: d_out of shape [2, 4, 3, 6] is needed, none came");
  EXPECT_EQ(with([&](SecondCall& call) {
              call.cotangents.q = f32({2, 4, 3, 6});
            }),
            "attention: c_q must be [2, 4, 3, 8], got [2, 4, 3, 6]");
  EXPECT_EQ(with([&](SecondCall& call) {
              call.cotangents.bias = f32({1, 1, 3, 5});
            }),
            "attention: c_bias came without bias");
  EXPECT_EQ(with([&](SecondCall& call) { call.cotangents.slopes = f32({4}); }),
            "attention: c_slopes came without slopes");
  EXPECT_EQ(with([&](SecondCall& call) {
              call.cotangents.table = f32({4, 8});
            }),
            "attention: c_table came without table");
  EXPECT_EQ(with([&](SecondCall& call) { call.cotangents.sinks = f32({4}); }), "attention: c_sinks came without sinks");
  EXPECT_EQ(with([&](SecondCall& call) { call.gradients.sinks = call.g_q.mutable_view(); }),
            "attention: g_sinks came without sinks");
  EXPECT_EQ(with([&](SecondCall& call) { call.gradients.d_lse = call.g_q.mutable_view(); }),
            "attention: g_d_lse must be [2, 4, 3], got [2, 4, 3, 8]");
  EXPECT_EQ(with([&](SecondCall& call) { call.gradients.bias = call.g_q.mutable_view(); }),
            "attention: g_bias came without bias");
  EXPECT_EQ(with([&](SecondCall& call) { call.gradients.v = call.g_k.mutable_view(); }),
            "attention: g_v must be [2, 2, 5, 6], got [2, 2, 5, 8]");
  EXPECT_EQ(with([&](SecondCall& call) { call.gradients.d_out = call.out.mutable_view(); }),
            "attention: g_d_out overlaps state.out");
}

}  // namespace
}  // namespace qkv
