// SPDX-License-Identifier: Apache-2.0
//
// The backward of every layer against finite differences in f64, and that parameter gradients are added to.
#include <limits>

#include "finite_differences.h"
#include "layer_parts.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr DType kF64 = DType::f64;

/// The tensors of two sources that followed the same recipe.
void add_parameters(std::vector<Differentiated>& all, Source<TensorView>& values,
                    Source<MutableTensorView>& gradients) {
  ASSERT_EQ(values.tensors.size(), gradients.tensors.size());
  for (size_t i = 0; i < values.tensors.size(); ++i) {
    all.push_back({concat("parameter ", i), &values.tensors[i], &gradients.tensors[i]});
  }
}

TEST(nn_gradient, linear) {
  Source<TensorView> values(kF64);
  Source<MutableTensorView> gradients(kF64);
  const Linear linear = make_linear(values, 7, 5);
  const LinearGradients d_linear = make_linear(gradients, 7, 5);
  Tensor x = random_rows(kF64, {9, 5}, 2), d_x(kF64, {9, 5}), y(kF64, {9, 7});
  const Tensor d_y = random_rows(kF64, {9, 7}, 3);
  linear_backward(x.view(), linear, d_y.view(), d_x.mutable_view(), d_linear);
  std::vector<Differentiated> all = {{"x", &x, &d_x}};
  add_parameters(all, values, gradients);
  expect_gradients(all, [&](double* magnitude) {
    linear_forward(x.view(), linear, y.mutable_view());
    return inner_product(d_y, y, magnitude);
  });
}

TEST(nn_gradient, norms) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const double offset : {0.0, 1.0}) {
      const NormalizeOptions options = {.kind = kind, .epsilon = 1e-3, .weight_offset = offset};
      Source<TensorView> values(kF64);
      Source<MutableTensorView> gradients(kF64);
      const NormParameters norm = make_norm(values, 11);
      const NormGradients d_norm = make_norm(gradients, 11);
      Tensor x = random_rows(kF64, {70, 11}, 4, 0.5), residual = random_rows(kF64, {70, 11}, 5);
      Tensor y(kF64, {70, 11}), d_x(kF64, {70, 11});
      const Tensor d_y = random_rows(kF64, {70, 11}, 6);
      NormalizeOptions with_residual = options;
      with_residual.residual = residual.view();
      NormalizeState state;
      normalize(x.view(), norm.weight, norm.bias, y.mutable_view(), with_residual, &state);
      normalize_backward(x.view(), norm.weight, state, d_y.view(), options,
                         {.x = d_x.mutable_view(), .weight = d_norm.weight, .bias = d_norm.bias});
      std::vector<Differentiated> all = {{"x", &x, &d_x}, {"residual", &residual, &d_y}};
      add_parameters(all, values, gradients);
      expect_gradients(all, [&](double* magnitude) {
        normalize(x.view(), norm.weight, norm.bias, y.mutable_view(), with_residual);
        return inner_product(d_y, y, magnitude);
      });
    }
  }
}

TEST(nn_gradient, activations_with_and_without_gate) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    SCOPED_TRACE(static_cast<int>(activation));
    Tensor x = random_rows(kF64, {5, 13}, 1), gate = random_rows(kF64, {5, 13}, 2);
    Tensor y(kF64, {5, 13}), d_x(kF64, {5, 13}), d_gate(kF64, {5, 13});
    for (int64_t n = 0; n < 65; ++n) {  // no step crosses the kink of relu
      auto* value = static_cast<double*>(x.mutable_view().at(n));
      if (std::fabs(*value) < 0.05) *value = 0.05;
    }
    const Tensor d_y = random_rows(kF64, {5, 13}, 3);
    for (const bool gated : {false, true}) {
      const TensorView g = gated ? gate.view() : TensorView();
      activate_backward(x.view(), g, activation, d_y.view(),
                        {d_x.mutable_view(), gated ? d_gate.mutable_view() : MutableTensorView()});
      std::vector<Differentiated> all = {{"x", &x, &d_x}};
      if (gated) all.push_back({"gate", &gate, &d_gate});
      expect_gradients(all, [&](double* magnitude) {
        activate(x.view(), g, activation, y.mutable_view());
        return inner_product(d_y, y, magnitude);
      });
    }
  }
}

TEST(nn_gradient, embedding_with_repeated_ids) {
  Tensor table = random_rows(kF64, {6, 4}, 1), d_table(kF64, {6, 4}), y(kF64, {7, 4});
  const Tensor ids = positions_of({3, 0, 3, 5, 3, 0, 1}), d_y = random_rows(kF64, {7, 4}, 2);
  const EmbeddingOptions options = {.scale = 1.7};
  embedding_backward(ids.view(), d_y.view(), d_table.mutable_view(), options);
  expect_gradients({{"table", &table, &d_table}}, [&](double* magnitude) {
    embedding_forward(table.view(), ids.view(), y.mutable_view(), options);
    return inner_product(d_y, y, magnitude);
  });
}

TEST(nn_gradient, a_head_tied_to_the_embedding_gathers_both_gradients) {
  Tensor table = random_rows(kF64, {6, 4}, 1), d_table(kF64, {6, 4});
  Tensor rows(kF64, {3, 4}), d_rows(kF64, {3, 4}), logits(kF64, {3, 6});
  const Tensor ids = positions_of({3, 0, 3}), d_logits = random_rows(kF64, {3, 6}, 2);
  const Linear head = {.weight = table.view()};
  const auto forward = [&] {
    embedding_forward(table.view(), ids.view(), rows.mutable_view());
    linear_forward(rows.view(), head, logits.mutable_view());
  };
  forward();
  linear_backward(rows.view(), head, d_logits.view(), d_rows.mutable_view(), {.weight = d_table.mutable_view()});
  embedding_backward(ids.view(), d_rows.view(), d_table.mutable_view());
  expect_gradients({{"table", &table, &d_table}}, [&](double* magnitude) {
    forward();
    return inner_product(d_logits, logits, magnitude);
  });
}

TEST(nn_gradient, rotary_of_every_layout) {
  for (const RotaryLayout layout : {RotaryLayout::half_split, RotaryLayout::interleaved}) {
    const Tensor positions = positions_of({0, 3, 1000, 70000});
    const RotaryTable table =
        rotary_table(positions.view(),
                     {.width = 6,
                      .layout = layout,
                      .scaling = {.kind = RotaryScaling::Kind::yarn, .factor = 4, .original_length = 64}},
                     kF64);
    Tensor x = random_rows(kF64, {4, 3, 8}, 1), d_x = random_rows(kF64, {4, 3, 8}, 2);
    const Tensor d_y = converted(d_x.view(), kF64);
    rotary_backward(d_x.mutable_view(), table);
    expect_gradients({{"x", &x, &d_x}}, [&](double* magnitude) {
      Tensor y = converted(x.view(), kF64);
      rotary_forward(y.mutable_view(), table);
      return inner_product(d_y, y, magnitude);
    });
  }
}

TEST(nn_gradient, feed_forward) {
  for (const bool gated : {false, true}) {
    for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
      Source<TensorView> values(kF64);
      Source<MutableTensorView> gradients(kF64);
      const FeedForward parameters = make_feed_forward(values, 6, 10, gated);
      const FeedForwardGradients d_parameters = make_feed_forward(gradients, 6, 10, gated);
      Tensor x = random_rows(kF64, {5, 6}, 1), y(kF64, {5, 6}), d_x(kF64, {5, 6});
      const Tensor d_y = random_rows(kF64, {5, 6}, 2);
      const FeedForwardOptions options = {.activation = activation, .dropout = {.p = 0.3, .seed = 5}};
      FeedForwardState state;
      feed_forward_forward(x.view(), parameters, options, y.mutable_view(), &state);
      feed_forward_backward(x.view(), parameters, options, state, d_y.view(), d_x.mutable_view(), d_parameters);
      std::vector<Differentiated> all = {{"x", &x, &d_x}};
      add_parameters(all, values, gradients);
      expect_gradients(all, [&](double* magnitude) {
        feed_forward_forward(x.view(), parameters, options, y.mutable_view());
        return inner_product(d_y, y, magnitude);
      });
    }
  }
}

TEST(nn_gradient, parameter_gradients_are_added_to) {
  Source<TensorView> values(kF64);
  const BlockRecipe recipe = {.cross = true};
  const Block block = make_block(values, recipe);
  const Tensor x = random_rows(kF64, {6, 12}, 1), memory = random_rows(kF64, {4, 12}, 2);
  const Tensor d_y = random_rows(kF64, {6, 12}, 3);
  const MultiHeadAttentionOptions attention = {.heads = 4, .kv_heads = 2};
  const BlockOptions options = {.attention = attention, .cross = attention};
  Tensor y(kF64, {6, 12});
  BlockState state;
  block_forward(x.view(), memory.view(), block, options, y.mutable_view(), &state);
  const auto backward = [&](const BlockGradients& gradients) {
    Tensor d_x(kF64, {6, 12});
    block_backward(x.view(), memory.view(), block, options, state, d_y.view(), {.x = d_x.mutable_view()}, gradients);
  };
  Source<MutableTensorView> once(kF64), twice(kF64);
  const BlockGradients first = make_block(once, recipe), second = make_block(twice, recipe);
  backward(first);
  backward(second);
  backward(second);
  for (size_t i = 0; i < once.tensors.size(); ++i) {
    for (int64_t n = 0; n < once.tensors[i].view().elements(); ++n) {
      const double g = load_as_double(kF64, once.tensors[i].view().at(n));
      // The second sum begins at the first: another rounding of each of its terms.
      EXPECT_NEAR(load_as_double(kF64, twice.tensors[i].view().at(n)), 2 * g,
                  32 * std::numeric_limits<double>::epsilon() * (1 + std::fabs(g)));
    }
  }
}

}  // namespace
}  // namespace qkv::test
