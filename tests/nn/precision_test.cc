// SPDX-License-Identifier: Apache-2.0
//
// Layers in f32 with f32 and bf16 weights, and in bf16, against the same layers in f64 on the same stored numbers:
// values and gradients stay within what one rounding of every intermediate costs.
#include <gtest/gtest.h>

#include <cmath>

#include "layer_parts.h"
#include "operation.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

constexpr int64_t kWidth = 24, kRows = 10;

struct Results {
  std::vector<Tensor> all;
  std::vector<std::string> names;
};

/// A stack of two gated blocks forward and backward, with the parameters of `values` in another dtype.
Results run(const Source<TensorView>& stored, DType activations, DType weights, const Tensor& x, const Tensor& d_y) {
  BlockRecipe recipe;
  recipe.sizes = {.width = kWidth, .memory_width = kWidth, .H = 4, .Hkv = 2, .D = 6, .Dv = 6};
  recipe.hidden = 40;
  recipe.gated = true;
  Source<TensorView> values(weights);
  const Stack stack = make_stack(values, recipe, 2);
  for (size_t i = 0; i < stored.tensors.size(); ++i) {
    copy(stored.tensors[i].view(), values.tensors[i].mutable_view());
  }
  Source<MutableTensorView> gradients(activations == DType::f64 ? DType::f64 : DType::f32);
  const StackGradients d_stack = make_stack(gradients, recipe, 2);
  BlockOptions block = {.norm = {.kind = NormKind::rms}, .attention = {.heads = 4, .kv_heads = 2}};
  block.attention.attention.causal = Causal::bottom_right();
  block.feed_forward.activation = Activation::silu;
  const StackOptions options = {.blocks = {block}, .final_norm = NormalizeOptions{}};
  const Tensor input = converted(x.view(), activations), upstream = converted(d_y.view(), activations);
  Tensor y(activations, x.shape()), d_x(activations, x.shape());
  StackState state;
  stack_forward(input.view(), {}, stack, options, y.mutable_view(), &state);
  stack_backward(input.view(), {}, stack, options, state, upstream.view(), {.x = d_x.mutable_view()}, d_stack);
  Results results;
  results.all = {y, d_x};
  results.names = {"y", "d_x"};
  for (size_t i = 0; i < gradients.tensors.size(); ++i) {
    results.all.push_back(gradients.tensors[i]);
    results.names.push_back(concat("gradient ", i));
  }
  return results;
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (int64_t n = 0; n < tensor.view().elements(); ++n) {
    const double x = load_as_double(tensor.dtype(), tensor.view().at(n));
    sum += x * x;
  }
  return std::sqrt(sum);
}

double distance(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t n = 0; n < a.view().elements(); ++n) {
    const double x = load_as_double(a.dtype(), a.view().at(n)) - load_as_double(b.dtype(), b.view().at(n));
    sum += x * x;
  }
  return std::sqrt(sum);
}

TEST(nn_precision, values_and_gradients_against_f64) {
  struct Case {
    DType activations, weights;
    double unit;  ///< unit roundoff of what intermediates are stored in
  };
  constexpr Case kCases[] = {{DType::f32, DType::f32, 0x1p-24},
                             {DType::f32, DType::bf16, 0x1p-24},
                             {DType::f16, DType::f16, 0x1p-11},
                             {DType::bf16, DType::bf16, 0x1p-8}};
  for_each_target([&](const std::string&) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(concat(name(c.activations), " ", name(c.weights)));
      BlockRecipe recipe;
      recipe.sizes = {.width = kWidth, .memory_width = kWidth, .H = 4, .Hkv = 2, .D = 6, .Dv = 6};
      recipe.hidden = 40;
      recipe.gated = true;
      Source<TensorView> stored(c.weights);
      make_stack(stored, recipe, 2);
      const Tensor x = random_rows(c.activations, {kRows, kWidth}, 1);
      const Tensor d_y = random_rows(c.activations, {kRows, kWidth}, 2);
      const Results exact = run(stored, DType::f64, DType::f64, x, d_y);
      const Results found = run(stored, c.activations, c.weights, x, d_y);
      // Some thirty roundings lie between input and output, as many again on the way back; each is off by a unit of
      // its tensor's norm at most, and norms stay within a few times of each other here.
      double largest = 0;
      for (size_t i = 2; i < exact.all.size(); ++i) largest = std::max(largest, norm_of(exact.all[i]));
      for (size_t i = 0; i < exact.all.size(); ++i) {
        const double scale = std::max(norm_of(exact.all[i]), i < 2 ? 0 : largest * 0x1p-4);
        EXPECT_LE(distance(found.all[i], exact.all[i]), 60 * c.unit * scale) << exact.names[i];
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
