// SPDX-License-Identifier: Apache-2.0
//
// What layers refuse, in sentences that name the thing, what was expected and what came; and that nothing has been
// written then.
#include <gtest/gtest.h>

#include <functional>

#include "layer_parts.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr DType kF32 = DType::f32;

void expect_refusal(const std::string& expected, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << expected;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(nn_check, embedding) {
  const Tensor table = random_rows(kF32, {5, 4}, 1), wide = random_rows(DType::f64, {5, 4}, 1);
  Tensor y(kF32, {3, 4}), narrow(kF32, {3, 3});
  const Tensor ids = positions_of({0, 4, 2}), outside = positions_of({0, 5, 2}), negative = positions_of({0, 1, -1});
  expect_refusal("embedding: id 5 at 1 is outside the table's 5 rows",
                 [&] { embedding_forward(table.view(), outside.view(), y.mutable_view()); });
  expect_refusal("embedding: id -1 at 2 is outside",
                 [&] { embedding_forward(table.view(), negative.view(), y.mutable_view()); });
  expect_refusal("embedding: the table has width 4, y has 3",
                 [&] { embedding_forward(table.view(), ids.view(), narrow.mutable_view()); });
  expect_refusal("embedding: the table is f64, y is f32",
                 [&] { embedding_forward(wide.view(), ids.view(), y.mutable_view()); });
  expect_refusal("embedding: ids should be i64 or i32, got f32", [&] {
    embedding_forward(table.view(), TensorView(kF32, table.view().data(), {3}), y.mutable_view());
  });
  for (int64_t n = 0; n < 12; ++n) EXPECT_EQ(load_as_double(kF32, y.view().at(n)), 0);
}

TEST(nn_check, multi_head_attention) {
  Source<TensorView> values(kF32);
  const MultiHeadAttention parameters = make_attention(values, {});
  const Tensor x = random_rows(kF32, {6, 12}, 1), bias = random_rows(kF32, {1, 4, 6, 6}, 2);
  Tensor y(kF32, {6, 12});
  const auto call = [&](const MultiHeadAttention& p, const MultiHeadAttentionOptions& options) {
    multi_head_attention_forward(x.view(), {}, p, options, y.mutable_view());
  };
  const MultiHeadAttentionOptions right = {.heads = 4, .kv_heads = 2};
  call(parameters, right);
  expect_refusal("multi_head_attention: kv_heads should divide the 4 heads, got 3",
                 [&] { call(parameters, {.heads = 4, .kv_heads = 3}); });
  expect_refusal("multi_head_attention: q gives 16 columns, no multiple of 5 heads",
                 [&] { call(parameters, {.heads = 5}); });
  expect_refusal("multi_head_attention: k should give 4 heads of 4, got 8 columns",
                 [&] { call(parameters, {.heads = 4}); });
  expect_refusal("multi_head_attention: x has 6 rows, no multiple of the batch 4",
                 [&] { call(parameters, {.heads = 4, .kv_heads = 2, .batch = 4}); });
  MultiHeadAttention with_bias = parameters;
  with_bias.bias = bias.view();
  MultiHeadAttentionOptions twice = right;
  twice.attention.bias = bias.view();
  expect_refusal("multi_head_attention: bias stands among the parameters and among the options",
                 [&] { call(with_bias, twice); });
  MultiHeadAttention normed = parameters;
  normed.q_norm.weight = TensorView(kF32, bias.view().data(), {4});
  expect_refusal("multi_head_attention: q_norm and k_norm need the option head_norm", [&] { call(normed, right); });
  MultiHeadAttention headless = parameters;
  headless.q = {};
  expect_refusal("multi_head_attention: q needs a weight [out, in]", [&] { call(headless, right); });
  expect_refusal("multi_head_attention: x should be [rows, width], got [12]", [&] {
    multi_head_attention_forward(TensorView(kF32, x.view().data(), {12}), {}, parameters, right, y.mutable_view());
  });
  expect_refusal("multi_head_attention_backward: a gradient of sinks is wanted, but it is no parameter", [&] {
    MultiHeadAttentionState state;
    multi_head_attention_forward(x.view(), {}, parameters, right, y.mutable_view(), &state);
    Tensor d_sinks(kF32, {4});
    multi_head_attention_backward(x.view(), {}, parameters, right, state, y.view(), {},
                                  {.sinks = d_sinks.mutable_view()});
  });
}

TEST(nn_check, attention_on_a_cache) {
  Source<TensorView> values(kF32);
  const MultiHeadAttention parameters = make_attention(values, {});
  const Tensor x = random_rows(kF32, {6, 12}, 1), starts = starts_of({4, 2}), three = starts_of({1, 2, 3});
  Tensor y(kF32, {6, 12});
  KeyValueCache cache(2, 2, 4, 3, kF32);
  const MultiHeadAttentionOptions options = {
      .heads = 4, .kv_heads = 2, .attention = {.causal = Causal::bottom_right()}};
  const auto attend = [&](const AttentionOptions& attention) {
    MultiHeadAttentionOptions now = options;
    now.attention = attention;
    multi_head_attention_cached(x.view(), parameters, now, cache, y.mutable_view());
  };
  expect_refusal("multi_head_attention: sequence 0 has 3 rows, its cache holds 0 keys: append them first",
                 [&] { attend(options.attention); });
  multi_head_attention_append(x.view(), starts.view(), parameters, options, cache);
  EXPECT_EQ(cache.length(0), 4);
  EXPECT_EQ(cache.length(1), 2);
  expect_refusal("multi_head_attention: with a cache rows are the last of their sequences, no causal offset",
                 [&] { attend({.causal = Causal::with_offset(3)}); });
  expect_refusal("no offset is accepted", [&] { attend({.offset = 2}); });
  expect_refusal("query_starts should be [3] for the cache's sequences, got [4]",
                 [&] { attend({.query_starts = three.view()}); });
  const Tensor mask(DType::u8, {2, 1, 1, 4});
  expect_refusal("came together with query_starts",
                 [&] { attend({.mask = mask.view(), .query_starts = starts.view()}); });
  const Tensor five = random_rows(kF32, {5, 12}, 1);
  expect_refusal("5 rows are no multiple of the cache's 2 sequences",
                 [&] { multi_head_attention_append(five.view(), {}, parameters, options, cache); });
  KeyValueCache other(2, 2, 5, 3, kF32);
  expect_refusal("", [&] { multi_head_attention_append(x.view(), starts.view(), parameters, options, other); });
  EXPECT_EQ(other.length(0), 0);
}

TEST(nn_check, blocks_and_stacks) {
  Source<TensorView> values(kF32);
  const Stack stack = make_stack(values, {}, 2);
  const Tensor x = random_rows(kF32, {6, 12}, 1);
  Tensor y(kF32, {6, 12}), short_y(kF32, {5, 12});
  const BlockOptions block = {.attention = {.heads = 4, .kv_heads = 2}};
  expect_refusal("stack: options should be one for all 2 blocks or one for each, got 3", [&] {
    stack_forward(x.view(), {}, stack, {.blocks = {block, block, block}}, y.mutable_view());
  });
  expect_refusal("stack: y should be [6, 12] as x, got [5, 12]",
                 [&] { stack_forward(x.view(), {}, stack, {.blocks = {block}}, short_y.mutable_view()); });
  expect_refusal("stack: 2 blocks need as many caches, got 0",
                 [&] { stack_cached(x.view(), stack, {.blocks = {block}}, {}, y.mutable_view()); });
  BlockOptions parallel = block;
  parallel.form = BlockForm::parallel;
  expect_refusal("block: a parallel block attends to no memory, but one came",
                 [&] { block_forward(x.view(), x.view(), stack.blocks[0], parallel, y.mutable_view()); });
  BlockOptions with_residual = block;
  with_residual.feed_forward.residual = x.view();
  expect_refusal("block: residuals of sublayers should be absent",
                 [&] { block_forward(x.view(), {}, stack.blocks[0], with_residual, y.mutable_view()); });
  StackState empty;
  expect_refusal("stack_backward: gradients should be of 2 blocks, got 0",
                 [&] { stack_backward(x.view(), {}, stack, {.blocks = {block}}, empty, x.view(), {}, {}); });
}

}  // namespace
}  // namespace qkv::test
