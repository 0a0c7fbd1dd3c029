// SPDX-License-Identifier: Apache-2.0
//
// Wrong calls of the probes: each gets one sentence, and nothing is written.
#include <gtest/gtest.h>

#include <functional>

#include "qkv/attention/probe.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

/// B = 2, H = 4, Hkv = 2, Tq = 3, Tk = 5, D = 8, Dv = 6, f32. Each case spoils it.
struct Call {
  Tensor q_memory{DType::f32, {2, 4, 3, 8}}, k_memory{DType::f32, {2, 2, 5, 8}}, v_memory{DType::f32, {2, 2, 5, 6}};
  TensorView q = q_memory.view(), k = k_memory.view(), v = v_memory.view();
  AttentionOptions options = {};
  Tensor row_entropy{DType::f32, {2, 4, 3}}, row_max{DType::f32, {2, 4, 3}}, row_top{DType::i64, {2, 4, 3}},
      key_mass{DType::f32, {2, 4, 5}}, weights{DType::f32, {2, 4, 2, 4}};
  AttentionStatistics statistics{row_entropy.mutable_view(), row_max.mutable_view(), row_top.mutable_view(),
                                 key_mass.mutable_view()};
  Range queries{1, 3}, keys{0, 4};
  MutableTensorView tile = weights.mutable_view();
  int64_t query = 1, count = 2;

  void run_statistics() const { attention_statistics(q, k, v, options, statistics); }
  void run_weights() const { attention_weights(q, k, v, options, queries, keys, tile); }
  void run_edges() const { attention_edges(q, k, v, options, query, count); }
};

using Spoil = std::function<void(Call&)>;
struct Case {
  Spoil spoil;
  const char* message;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Every case throws its sentence, before anything is written.
void expect_messages(const std::vector<Case>& cases, void (Call::*run)() const) {
  for (const Case& wrong : cases) {
    Call call;
    for (Tensor* output : {&call.row_entropy, &call.row_max, &call.row_top, &call.key_mass, &call.weights}) {
      for (int64_t n = 0; n < output->view().elements(); ++n) {
        store_from_double(output->dtype(), output->mutable_view().at(n), 77);
      }
    }
    wrong.spoil(call);
    EXPECT_EQ(message_of([&] { (call.*run)(); }), wrong.message);
    for (const Tensor* output : {&call.row_entropy, &call.row_max, &call.row_top, &call.key_mass, &call.weights}) {
      for (int64_t n = 0; n < output->view().elements(); ++n) {
        EXPECT_EQ(load_as_double(output->dtype(), output->view().at(n)), 77) << wrong.message;
      }
    }
  }
}

MutableTensorView view(Tensor& memory, DType dtype, const Dims& shape) {
  return {dtype, memory.mutable_view().data(), shape};
}

TEST(probe_check, statistics_of_the_wrong_form_are_refused) {
  expect_messages(
      {
          {[](Call& c) {
             c.v = TensorView(DType::f32, c.v.data(), {2, 2, 4, 6});
           },
           "attention: v has 4 keys, k has 5"},
          {[](Call& c) {
             c.statistics.row_entropy = view(c.row_entropy, DType::f32, {2, 4, 2});
           },
           "attention: row_entropy must be [2, 4, 3], got [2, 4, 2]"},
          {[](Call& c) {
             c.statistics.row_max = view(c.row_max, DType::bf16, {2, 4, 3});
           },
           "attention: row_max must be f32, got bf16"},
          {[](Call& c) {
             c.statistics.row_top = view(c.row_top, DType::i32, {2, 4, 3});
           },
           "attention: row_top must be i64, got i32"},
          {[](Call& c) {
             c.statistics.key_mass = view(c.key_mass, DType::f32, {2, 4, 3});
           },
           "attention: key_mass must be [2, 4, 5], got [2, 4, 3]"},
          {[](Call& c) {
             c.statistics.key_mass = view(c.key_mass, DType::f32, {2, 2, 5});
           },
           "attention: key_mass must be [2, 4, 5], got [2, 2, 5]"},
          {[](Call& c) { c.statistics.row_max = c.statistics.row_entropy; }, "attention: row_max overlaps row_entropy"},
          {[](Call& c) {
             c.statistics.key_mass = view(c.k_memory, DType::f32, {2, 4, 5});
           },
           "attention: key_mass overlaps k"},
          {[](Call& c) {
             c.statistics.row_max = {DType::f32, c.row_max.mutable_view().data(), {2, 4, 3}, {0, 3, 1}};
           },
           "attention: row_max overlaps itself, strides [0, 3, 1]"},
      },
      &Call::run_statistics);
}

TEST(probe_check, weights_of_the_wrong_form_are_refused) {
  static const int64_t starts[] = {0, 2};
  expect_messages(
      {
          {[](Call& c) {
             c.queries = {1, 4};
           },
           "attention: the tile's queries must be a range within 0:3, got 1:4"},
          {[](Call& c) {
             c.queries = {-1, 1};
           },
           "attention: the tile's queries must be a range within 0:3, got -1:1"},
          {[](Call& c) {
             c.keys = {4, 0};
           },
           "attention: the tile's keys must be a range within 0:5, got 4:0"},
          {[](Call& c) {
             c.keys = {2, 6};
           },
           "attention: the tile's keys must be a range within 0:5, got 2:6"},
          {[](Call& c) {
             c.keys = {0, 5};
           },
           "attention: weights must be [2, 4, 2, 5], got [2, 4, 2, 4]"},
          {[](Call& c) { c.tile = {}; }, "attention: weights of shape [2, 4, 2, 4] is needed, none came"},
          {[](Call& c) {
             c.tile = view(c.weights, DType::f16, {2, 4, 2, 4});
           },
           "attention: weights must be f32, got f16"},
          {[](Call& c) {
             c.tile = view(c.q_memory, DType::f32, {2, 4, 2, 4});
           },
           "attention: weights overlaps q"},
          {[](Call& c) {
             c.q = TensorView(DType::f32, c.q.data(), {2, 4, 8});
             c.k = TensorView(DType::f32, c.k.data(), {2, 2, 8});
             c.v = TensorView(DType::f32, c.v.data(), {2, 2, 6});
             c.options.query_starts = c.options.key_starts = TensorView(starts, {2});
           },
           "attention: weights are tiles of queries by keys, which packed sequences do not have in common; statistics "
           "and edges work with query_starts"},
      },
      &Call::run_weights);
}

TEST(probe_check, edges_of_no_query_are_refused) {
  expect_messages(
      {
          {[](Call& c) { c.query = 3; },
           "attention: the edges' query must be one of the 3 in q, counted from 0, got 3"},
          {[](Call& c) { c.query = -1; },
           "attention: the edges' query must be one of the 3 in q, counted from 0, got -1"},
          {[](Call& c) { c.count = -1; }, "attention: the edges' number of keys must not be negative, got -1"},
          {[](Call& c) { c.count = int64_t{1} << 60; },
           "attention: B x H x count x Dv of the edges does not fit 64 bits"},
      },
      &Call::run_edges);
}

TEST(probe_check, right_calls_write_everything) {
  Call call;
  call.run_statistics();
  call.run_weights();
  EXPECT_EQ(load_as_double(DType::f32, call.row_max.view().at(0)), static_cast<double>(0.2F));
  EXPECT_EQ(load_as_double(DType::f32, call.weights.view().at(31)), static_cast<double>(0.2F));
  const AttentionEdges edges = attention_edges(call.q, call.k, call.v, call.options, call.query, 0);
  EXPECT_EQ(edges.keys.shape(), (Dims{2, 4, 0}));
}

}  // namespace
}  // namespace qkv::test
