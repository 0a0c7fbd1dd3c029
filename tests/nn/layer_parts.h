// SPDX-License-Identifier: Apache-2.0
//
// Parameters for tests of layers, made twice from one recipe: random values, and zeros for their gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>

#include <initializer_list>
#include <string>

#include "qkv/nn.h"
#include "random_stream.h"

namespace qkv::test {

/// Hands out tensors in the order in which a recipe asks for them: normal numbers where View is TensorView, else zeros.
template <class View>
class Source {
 public:
  explicit Source(DType dtype, uint64_t seed = 1) : dtype_(dtype), stream_(seed) {}
  View next(const Dims& shape, double scale = 1, double mean = 0) {
    tensors.emplace_back(dtype_of(shape), shape);
    const MutableTensorView view = tensors.back().mutable_view();
    if constexpr (std::is_same_v<View, TensorView>) {
      for (int64_t n = 0; n < view.elements(); ++n) {
        store_from_double(view.dtype(), view.at(n), mean + scale * stream_.normal());
      }
    }
    return view;
  }
  /// f32 gradients of narrow weights; terms of attention are never narrow.
  View next_wide(const Dims& shape, double scale = 1, double mean = 0) {
    const DType before = dtype_;
    dtype_ = dtype_ == DType::f64 ? DType::f64 : DType::f32;
    const View view = next(shape, scale, mean);
    dtype_ = before;
    return view;
  }

  std::deque<Tensor> tensors;

 private:
  DType dtype_of(const Dims&) const {
    return std::is_same_v<View, TensorView> || dtype_ == DType::f64 ? dtype_ : DType::f32;
  }
  DType dtype_;
  Stream stream_;
};

template <class View>
LinearOf<View> make_linear(Source<View>& source, int64_t out, int64_t in, bool bias = true) {
  LinearOf<View> linear;
  linear.weight = source.next({out, in}, 1 / std::sqrt(static_cast<double>(in)));
  if (bias) linear.bias = source.next({out}, 0.3);
  return linear;
}

template <class View>
NormOf<View> make_norm(Source<View>& source, int64_t width, bool bias = true) {
  NormOf<View> norm;
  norm.weight = source.next({width}, 0.3, 1);
  if (bias) norm.bias = source.next({width}, 0.3);
  return norm;
}

template <class View>
FeedForwardOf<View> make_feed_forward(Source<View>& source, int64_t width, int64_t hidden, bool gated) {
  FeedForwardOf<View> feed_forward;
  feed_forward.up = make_linear(source, hidden, width);
  if (gated) feed_forward.gate = make_linear(source, hidden, width);
  feed_forward.down = make_linear(source, width, hidden);
  return feed_forward;
}

/// Sizes of an attention layer.
struct AttentionSizes {
  int64_t width = 12, memory_width = 12;
  int64_t H = 4, Hkv = 2, D = 4, Dv = 3;
};

template <class View>
MultiHeadAttentionOf<View> make_attention(Source<View>& source, const AttentionSizes& sizes, bool head_norm = false) {
  MultiHeadAttentionOf<View> attention;
  attention.q = make_linear(source, sizes.H * sizes.D, sizes.width);
  attention.k = make_linear(source, sizes.Hkv * sizes.D, sizes.memory_width, false);
  attention.v = make_linear(source, sizes.Hkv * sizes.Dv, sizes.memory_width);
  attention.out = make_linear(source, sizes.width, sizes.H * sizes.Dv);
  if (head_norm) {
    attention.q_norm = make_norm(source, sizes.D, false);
    attention.k_norm = make_norm(source, sizes.D);
  }
  return attention;
}

struct BlockRecipe {
  AttentionSizes sizes = {};
  int64_t hidden = 20;
  bool gated = false;
  bool cross = false;
  bool sandwich = false;
};

template <class View>
BlockOf<View> make_block(Source<View>& source, const BlockRecipe& recipe) {
  BlockOf<View> block;
  const int64_t width = recipe.sizes.width;
  block.attention_norm = make_norm(source, width);
  if (recipe.sandwich) block.attention_after_norm = make_norm(source, width);
  AttentionSizes self = recipe.sizes;
  self.memory_width = width;
  block.attention = make_attention(source, self);
  if (recipe.cross) {
    block.cross_norm = make_norm(source, width);
    if (recipe.sandwich) block.cross_after_norm = make_norm(source, width);
    block.cross = make_attention(source, recipe.sizes);
  }
  block.feed_forward_norm = make_norm(source, width);
  if (recipe.sandwich) block.feed_forward_after_norm = make_norm(source, width);
  block.feed_forward = make_feed_forward(source, width, recipe.hidden, recipe.gated);
  return block;
}

template <class View>
StackOf<View> make_stack(Source<View>& source, const BlockRecipe& recipe, int blocks) {
  StackOf<View> stack;
  for (int i = 0; i < blocks; ++i) stack.blocks.push_back(make_block(source, recipe));
  stack.final_norm = make_norm(source, recipe.sizes.width);
  return stack;
}

inline Tensor random_rows(DType dtype, const Dims& shape, uint64_t seed, double mean = 0, double scale = 1) {
  Tensor tensor(dtype, shape);
  Stream stream(seed);
  const MutableTensorView view = tensor.mutable_view();
  for (int64_t n = 0; n < view.elements(); ++n) store_from_double(dtype, view.at(n), mean + scale * stream.normal());
  return tensor;
}

/// [sequences + 1] from lengths.
inline Tensor starts_of(std::initializer_list<int64_t> lengths) {
  Tensor starts(DType::i64, {static_cast<int64_t>(lengths.size()) + 1});
  auto* values = static_cast<int64_t*>(starts.mutable_view().data());
  for (const int64_t length : lengths) {
    values[1] = values[0] + length;
    ++values;
  }
  return starts;
}

inline Tensor positions_of(std::initializer_list<int64_t> values) {
  Tensor positions(DType::i64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(positions.mutable_view().data()));
  return positions;
}

}  // namespace qkv::test
