// SPDX-License-Identifier: Apache-2.0
//
// Layers and their derivatives: a decoder of two blocks learns a sentence by heart, letter by letter, and says it again
// from its first letters, decoding with a cache.
//
// All parameters lie in one array and all gradients in another of the same layout; structs of views name their parts.
// The embedding and the head are the same matrix, so its gradient gathers both. The program exits with 1 when the
// decoder says anything but the sentence.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "qkv/nn.h"

namespace {

const std::string kSentence = "attention over a block of keys is a triple, and triples merge.";
constexpr int64_t kLetters = 128, kWidth = 32, kHidden = 64, kHeads = 4, kSteps = 120;

/// Hands out parts of an array, in the order in which a model asks for them.
template <class View, class Float>
struct Parts {
  Float* next;
  View take(const qkv::Dims& shape) {
    const View view(next, shape);
    next += qkv::element_count(shape);
    return view;
  }
};

template <class View>
struct Model {
  View letters;  ///< [letters, width], of the embedding and of the head
  qkv::StackOf<View> stack;

  template <class Float>
  explicit Model(Parts<View, Float> parts) : letters(parts.take({kLetters, kWidth})) {
    for (int i = 0; i < 2; ++i) {
      qkv::BlockOf<View> block;
      block.attention_norm.weight = parts.take({kWidth});
      for (auto* linear : {&block.attention.q, &block.attention.k, &block.attention.v, &block.attention.out}) {
        linear->weight = parts.take({kWidth, kWidth});
      }
      block.feed_forward_norm.weight = parts.take({kWidth});
      block.feed_forward.up.weight = parts.take({kHidden, kWidth});
      block.feed_forward.gate.weight = parts.take({kHidden, kWidth});
      block.feed_forward.down.weight = parts.take({kWidth, kHidden});
      stack.blocks.push_back(block);
    }
    stack.final_norm.weight = parts.take({kWidth});
  }
};
constexpr int64_t kParameters =
    kLetters * kWidth + 2 * (2 * kWidth + 4 * kWidth * kWidth + 3 * kHidden * kWidth) + kWidth;

qkv::RotaryTable rotary(int64_t begin, int64_t end) {
  std::vector<int64_t> positions;
  for (int64_t i = begin; i < end; ++i) positions.push_back(i);
  return qkv::rotary_table({positions.data(), {end - begin}}, {.width = kWidth / kHeads});
}

/// As norms' weights are offset by 1, all parameters may begin near 0.
qkv::StackOptions options(const qkv::RotaryTable& table) {
  qkv::BlockOptions block{.norm = {.kind = qkv::NormKind::rms, .weight_offset = 1}};
  block.attention = {.heads = kHeads, .attention = {.causal = qkv::Causal::bottom_right()}, .rotary = &table};
  block.feed_forward.activation = qkv::Activation::silu;
  return {.blocks = {block}, .final_norm = block.norm};
}

float* data(qkv::Tensor& tensor) { return static_cast<float*>(tensor.mutable_view().data()); }

/// Mean cross-entropy of the letters that follow; adds to the gradients.
double learn(const std::vector<int64_t>& ids, const Model<qkv::TensorView>& model,
             const Model<qkv::MutableTensorView>& gradients) {
  const auto T = static_cast<int64_t>(ids.size()) - 1;
  const qkv::Dims rows{T, kWidth};
  const qkv::TensorView inputs(ids.data(), {T});
  const qkv::RotaryTable table = rotary(0, T);
  const qkv::Linear head{.weight = model.letters};
  qkv::Tensor x(qkv::DType::f32, rows), y(qkv::DType::f32, rows), logits(qkv::DType::f32, {T, kLetters});
  qkv::StackState state;
  embedding_forward(model.letters, inputs, x.mutable_view());
  stack_forward(x.view(), {}, model.stack, options(table), y.mutable_view(), &state);
  linear_forward(y.view(), head, logits.mutable_view());

  double loss = 0;
  for (int64_t t = 0; t < T; ++t) {  // logits become their gradient: softmax less the letter that followed
    float* row = data(logits) + t * kLetters;
    double sum = 0;
    for (int64_t c = 0; c < kLetters; ++c) sum += std::exp(static_cast<double>(row[c]));
    const auto next = static_cast<size_t>(t) + 1;
    loss += (std::log(sum) - static_cast<double>(row[ids[next]])) / static_cast<double>(T);
    for (int64_t c = 0; c < kLetters; ++c) {
      const double weight = std::exp(static_cast<double>(row[c])) / sum - (c == ids[next] ? 1 : 0);
      row[c] = static_cast<float>(weight / static_cast<double>(T));
    }
  }
  qkv::Tensor d_y(qkv::DType::f32, rows), d_x(qkv::DType::f32, rows);
  linear_backward(y.view(), head, logits.view(), d_y.mutable_view(), {.weight = gradients.letters});
  stack_backward(x.view(), {}, model.stack, options(table), state, d_y.view(), {.x = d_x.mutable_view()},
                 gradients.stack);
  embedding_backward(inputs, d_x.view(), gradients.letters);
  return loss;
}

/// One step of Adam.
void step(std::vector<float>& parameters, const std::vector<float>& gradients, std::vector<double>& mean,
          std::vector<double>& square, int number) {
  for (size_t n = 0; n < parameters.size(); ++n) {
    const auto g = static_cast<double>(gradients[n]);
    mean[n] += 0.1 * (g - mean[n]);
    square[n] += 0.01 * (g * g - square[n]);
    const double unbiased = mean[n] / (1 - std::pow(0.9, number));
    parameters[n] -= static_cast<float>(0.01 * unbiased / (std::sqrt(square[n] / (1 - std::pow(0.99, number))) + 1e-8));
  }
}

/// The letters after the beginning, each the likeliest, one at a time: keys and values of earlier ones are in caches.
std::string say(std::string text, size_t length, const Model<qkv::TensorView>& model) {
  std::vector<qkv::KeyValueCache> keys;
  for (int i = 0; i < 2; ++i) keys.emplace_back(1, kHeads, kWidth / kHeads, kWidth / kHeads, qkv::DType::f32);
  const std::vector<qkv::BlockCache> caches{{&keys[0]}, {&keys[1]}};
  for (size_t seen = 0; text.size() < length;) {
    const std::vector<int64_t> ids(text.begin() + static_cast<std::ptrdiff_t>(seen), text.end());
    const auto T = static_cast<int64_t>(ids.size());
    const qkv::RotaryTable table = rotary(static_cast<int64_t>(seen), static_cast<int64_t>(text.size()));
    qkv::Tensor x(qkv::DType::f32, {T, kWidth}), logits(qkv::DType::f32, {T, kLetters});
    embedding_forward(model.letters, {ids.data(), {T}}, x.mutable_view());
    stack_cached(x.view(), model.stack, options(table), caches, x.mutable_view());
    linear_forward(x.view(), {.weight = model.letters}, logits.mutable_view());
    const float* last = data(logits) + (T - 1) * kLetters;
    seen = text.size();
    text += static_cast<char>(std::max_element(last, last + kLetters) - last);
  }
  return text;
}

}  // namespace

int main() {
  std::vector<float> parameters(kParameters), gradients(kParameters);
  std::vector<double> mean(kParameters), square(kParameters);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.1F);
  for (float& x : parameters) x = normal(random);
  const Model<qkv::TensorView> model(Parts<qkv::TensorView, const float>{parameters.data()});
  const Model<qkv::MutableTensorView> d_model(Parts<qkv::MutableTensorView, float>{gradients.data()});

  const std::vector<int64_t> ids(kSentence.begin(), kSentence.end());
  for (int number = 1; number <= kSteps; ++number) {
    std::fill(gradients.begin(), gradients.end(), 0.0F);
    const double loss = learn(ids, model, d_model);
    if (number % 20 == 0 || number == 1) std::printf("step %3d: %.4f nats a letter\n", number, loss);
    step(parameters, gradients, mean, square, number);
  }
  const std::string said = say(kSentence.substr(0, 2), kSentence.size(), model);
  std::printf("%s\n", said.c_str());
  return said == kSentence ? 0 : 1;
}
