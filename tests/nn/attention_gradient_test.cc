// SPDX-License-Identifier: Apache-2.0
//
// The backward of multi-head attention with every option, of blocks in every form, of stacks and of an encoder-decoder,
// against finite differences in f64.
#include "finite_differences.h"
#include "layer_parts.h"
#include "qkv/positions/positions.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr DType kF64 = DType::f64;

void add_parameters(std::vector<Differentiated>& all, Source<TensorView>& values,
                    Source<MutableTensorView>& gradients) {
  ASSERT_EQ(values.tensors.size(), gradients.tensors.size());
  for (size_t i = 0; i < values.tensors.size(); ++i) {
    all.push_back({concat("parameter ", i), &values.tensors[i], &gradients.tensors[i]});
  }
}

/// One attention layer to differentiate. `terms` adds trainable terms of the operation to either kind of parameters.
struct AttentionCase {
  std::string name;
  MultiHeadAttentionOptions options = {};
  bool cross = false;
  bool head_norm = false;
  std::vector<Dims> bias = {}, slopes = {}, table = {}, sinks = {};  ///< a shape each, where it is trainable
};

template <class View>
MultiHeadAttentionOf<View> make_attention(Source<View>& source, const AttentionCase& c) {
  AttentionSizes sizes;
  if (c.cross) sizes.memory_width = 9;
  MultiHeadAttentionOf<View> attention = make_attention(source, sizes, c.head_norm);
  if (!c.bias.empty()) attention.bias = source.next(c.bias[0]);
  if (!c.slopes.empty()) attention.slopes = source.next(c.slopes[0], 0.1, 0.3);
  if (!c.table.empty()) attention.table = source.next(c.table[0]);
  if (!c.sinks.empty()) attention.sinks = source.next(c.sinks[0]);
  return attention;
}

void expect_attention(AttentionCase c) {
  SCOPED_TRACE(c.name);
  c.options.heads = 4;
  c.options.kv_heads = 2;
  if (c.head_norm) c.options.head_norm = NormalizeOptions{.kind = NormKind::rms};
  Source<TensorView> values(kF64);
  Source<MutableTensorView> gradients(kF64);
  const MultiHeadAttention parameters = make_attention(values, c);
  const MultiHeadAttentionGradients d_parameters = make_attention(gradients, c);
  Tensor x = random_rows(kF64, {8, 12}, 2), d_x(kF64, {8, 12}), y(kF64, {8, 12});
  Tensor memory = random_rows(kF64, {10, 9}, 3), d_memory = random_rows(kF64, {10, 9}, 4);
  const Tensor residual_of_memory = converted(d_memory.view(), kF64), d_y = random_rows(kF64, {8, 12}, 5);
  const TensorView memory_view = c.cross ? memory.view() : TensorView();
  MultiHeadAttentionState state;
  multi_head_attention_forward(x.view(), memory_view, parameters, c.options, y.mutable_view(), &state);
  MultiHeadAttentionInputGradients d_inputs = {.x = d_x.mutable_view()};
  if (c.cross) d_inputs = {d_x.mutable_view(), d_memory.mutable_view(), d_memory.view()};
  multi_head_attention_backward(x.view(), memory_view, parameters, c.options, state, d_y.view(), d_inputs,
                                d_parameters);
  if (c.cross) add_scaled(residual_of_memory.view(), -1, d_memory.view(), d_memory.mutable_view());
  std::vector<Differentiated> all = {{"x", &x, &d_x}};
  if (c.cross) all.push_back({"memory", &memory, &d_memory});
  add_parameters(all, values, gradients);
  expect_gradients(all, [&](double* magnitude) {
    multi_head_attention_forward(x.view(), memory_view, parameters, c.options, y.mutable_view());
    return inner_product(d_y, y, magnitude);
  });
}

TEST(nn_attention_gradient, every_option) {
  const Tensor starts = starts_of({3, 0, 5}), key_starts = starts_of({4, 1, 5});
  const Tensor lengths = positions_of({3, 4}), positions = positions_of({0, 1, 2, 0, 1, 2, 3, 4});
  const RotaryTable rotary = rotary_table(positions.view(), {.width = 2}, kF64);
  const RotaryTable whole = rotary_table(positions.view(), {.width = 4, .layout = RotaryLayout::interleaved}, kF64);
  const Tensor key_positions = positions_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const RotaryTable keys = rotary_table(key_positions.view(), {.width = 2}, kF64);
  const auto packed = [&](AttentionOptions options) {
    options.query_starts = starts.view();
    return options;
  };
  const auto causal = Causal::bottom_right();
  expect_attention({.name = "one sequence"});
  expect_attention({.name = "batch of two", .options = {.batch = 2, .attention = {.causal = causal}}});
  expect_attention({.name = "lengths", .options = {.batch = 2, .attention = {.key_lengths = lengths.view()}}});
  expect_attention({.name = "packed", .options = {.attention = packed({.causal = causal})}});
  expect_attention({.name = "packed window and rotary",
                    .options = {.attention = packed({.causal = causal, .window = {2, 0}}), .rotary = &rotary}});
  expect_attention({.name = "head norm and rotary",
                    .options = {.attention = packed({.scale = 0.7}), .rotary = &whole},
                    .head_norm = true});
  expect_attention({.name = "soft-cap, sinks", .options = {.attention = packed({.softcap = 2.5})}, .sinks = {{4}}});
  expect_attention({.name = "slopes", .options = {.attention = packed({.causal = causal})}, .slopes = {{4}}});
  expect_attention({.name = "table", .options = {.attention = packed({})}, .table = {{4, 6}}});
  expect_attention({.name = "bias", .options = {.batch = 2}, .bias = {{1, 4, 4, 4}}});
  expect_attention({.name = "dropout", .options = {.attention = packed({.dropout = 0.4, .seed = 11})}});
  expect_attention({.name = "cross", .options = {.batch = 2}, .cross = true});
  expect_attention(
      {.name = "cross, packed, rotary of both",
       .options = {.attention = packed({.key_starts = key_starts.view()}), .rotary = &rotary, .key_rotary = &keys},
       .cross = true,
       .head_norm = true});
}

void expect_block(const BlockOptions& options, BlockRecipe recipe, bool cross) {
  recipe.cross = cross;
  recipe.sandwich = options.form == BlockForm::sandwich;
  recipe.sizes.memory_width = 9;
  Source<TensorView> values(kF64);
  Source<MutableTensorView> gradients(kF64);
  const Block block = make_block(values, recipe);
  const BlockGradients d_block = make_block(gradients, recipe);
  Tensor x = random_rows(kF64, {8, 12}, 2), d_x = random_rows(kF64, {8, 12}, 4), y(kF64, {8, 12});
  Tensor memory = random_rows(kF64, {10, 9}, 3), d_memory(kF64, {10, 9});
  const Tensor d_y = converted(d_x.view(), kF64);
  const TensorView memory_view = cross ? memory.view() : TensorView();
  BlockState state;
  block_forward(x.view(), memory_view, block, options, y.mutable_view(), &state);
  BlockInputGradients d_inputs = {.x = d_x.mutable_view()};  // in place of d_y
  if (cross) d_inputs.memory = d_memory.mutable_view();
  block_backward(x.view(), memory_view, block, options, state, d_x.view(), d_inputs, d_block);
  std::vector<Differentiated> all = {{"x", &x, &d_x}};
  if (cross) all.push_back({"memory", &memory, &d_memory});
  add_parameters(all, values, gradients);
  expect_gradients(all, [&](double* magnitude) {
    y = converted(x.view(), kF64);
    block_forward(y.view(), memory_view, block, options, y.mutable_view());  // in place
    return inner_product(d_y, y, magnitude);
  });
}

TEST(nn_attention_gradient, blocks_of_every_form) {
  const MultiHeadAttentionOptions attention = {.heads = 4, .kv_heads = 2, .batch = 2};
  for (const BlockForm form : {BlockForm::pre_norm, BlockForm::post_norm, BlockForm::sandwich, BlockForm::parallel,
                               BlockForm::parallel_shared}) {
    for (const double p : {0.0, 0.3}) {
      SCOPED_TRACE(concat("form ", static_cast<int>(form), " dropout ", p));
      const BlockOptions options = {.form = form,
                                    .norm = {.kind = p == 0 ? NormKind::layer : NormKind::rms},
                                    .attention = attention,
                                    .cross = attention,
                                    .feed_forward = {.activation = Activation::silu},
                                    .dropout = {.p = p, .seed = 3}};
      expect_block(options, {.gated = p == 0}, false);
      if (form <= BlockForm::sandwich) expect_block(options, {.gated = p != 0}, true);
    }
  }
}

TEST(nn_attention_gradient, encoder_decoder_of_stacks) {
  const Tensor source_starts = starts_of({4, 3}), target_starts = starts_of({2, 4});
  MultiHeadAttentionOptions over_source = {.heads = 4, .kv_heads = 2};
  over_source.attention.query_starts = source_starts.view();
  MultiHeadAttentionOptions over_target = over_source, across = over_source;
  over_target.attention = {.causal = Causal::bottom_right(), .query_starts = target_starts.view()};
  across.attention = {.query_starts = target_starts.view(), .key_starts = source_starts.view()};
  const EncoderDecoderOptions options = {
      .encoder = {.blocks = {{.attention = over_source, .dropout = {.p = 0.2, .seed = 9}}},
                  .final_norm = NormalizeOptions{}},
      .decoder = {.blocks = {{.attention = over_target, .cross = across},
                             {.form = BlockForm::post_norm, .attention = over_target, .cross = across}},
                  .final_norm = NormalizeOptions{.kind = NormKind::rms}}};
  Source<TensorView> values(kF64);
  Source<MutableTensorView> gradients(kF64);
  const EncoderDecoder model = {make_stack(values, {}, 2), make_stack(values, {.cross = true}, 2)};
  const EncoderDecoderGradients d_model = {make_stack(gradients, {}, 2), make_stack(gradients, {.cross = true}, 2)};
  Tensor source = random_rows(kF64, {7, 12}, 2), d_source(kF64, {7, 12});
  Tensor target = random_rows(kF64, {6, 12}, 3), d_target(kF64, {6, 12}), y(kF64, {6, 12});
  const Tensor d_y = random_rows(kF64, {6, 12}, 4);
  EncoderDecoderState state;
  encoder_decoder_forward(source.view(), target.view(), model, options, y.mutable_view(), &state);
  encoder_decoder_backward(source.view(), target.view(), model, options, state, d_y.view(),
                           {d_source.mutable_view(), d_target.mutable_view()}, d_model);
  std::vector<Differentiated> all = {{"source", &source, &d_source}, {"target", &target, &d_target}};
  add_parameters(all, values, gradients);
  expect_gradients(all, [&](double* magnitude) {
    encoder_decoder_forward(source.view(), target.view(), model, options, y.mutable_view());
    return inner_product(d_y, y, magnitude);
  });
}

}  // namespace
}  // namespace qkv::test
