// SPDX-License-Identifier: Apache-2.0
//
// Values and gradients in f64 against those of PyTorch's layers, which tests/data/layers.py has written: padded batches
// there, packed rows here. Parameters are found by the names that visit() gives them.
#include <gtest/gtest.h>

#include <deque>

#include "layer_parts.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "strided.h"

namespace qkv::test {
namespace {

/// One case of the file.
class TorchCase {
 public:
  explicit TorchCase(std::string name) : name_(std::move(name)) {
    for (const auto& [key, tensor] : file().tensors) {
      if (key.starts_with(name_ + "/")) all_.emplace(key.substr(name_.size() + 1), tensor);
    }
    EXPECT_FALSE(all_.empty()) << name_;
    for (const auto& [key, tensor] : all_) {
      if (key != "d_y" && (key == "y" || key.starts_with("d_") || key.starts_with("g."))) {
        for (const double x : elements(tensor.view())) largest_ = std::max(largest_, std::fabs(x));
      }
    }
  }

  TensorView operator[](const std::string& key) const {
    const auto found = all_.find(key);
    return found == all_.end() ? TensorView() : found->second.view();
  }

  /// Fills parameters, and makes zeros for the gradients that the case has; every tensor must be taken.
  template <template <class> class Of>
  void take(Of<TensorView>& parameters, Of<MutableTensorView>& gradients, const std::string& name) {
    visit(parameters, name, [&](const std::string& key, TensorView& view) {
      view = (*this)["p." + key];
      taken_ += static_cast<bool>(view);
    });
    visit(gradients, name, [&](const std::string& key, MutableTensorView& view) {
      const TensorView expected = (*this)["g." + key];
      if (!expected) return;
      made_.emplace_back(key, Tensor(DType::f64, expected.shape()));
      view = made_.back().second.mutable_view();
    });
  }

  /// Rounding: some hundred operations in a row, each off by an epsilon of the largest result of the case.
  void expect(const char* key, const Tensor& result) const {
    const TensorView expected = (*this)[key];
    ASSERT_TRUE(expected && expected.shape() == result.shape()) << name_ << " " << key;
    const double bound = 512 * std::numeric_limits<double>::epsilon() * largest_;
    for (int64_t n = 0; n < expected.elements(); ++n) {
      ASSERT_NEAR(element(result.view(), n), element(expected, n), bound) << name_ << " " << key << " " << n;
    }
  }

  /// All gradients of parameters.
  void expect_gradients() const {
    size_t parameters = 0;
    for (const auto& [key, tensor] : all_) parameters += key.starts_with("p.");
    EXPECT_EQ(taken_, parameters) << name_;
    EXPECT_EQ(made_.size(), parameters) << name_;
    for (const auto& [key, tensor] : made_) expect(("g." + key).c_str(), tensor);
  }

 private:
  static const TensorFile& file() {
    static const TensorFile whole = read_safetensors(QKV_SOURCE_DIR "/tests/data/layers.safetensors");
    return whole;
  }
  std::string name_;
  std::map<std::string, Tensor> all_;
  std::deque<std::pair<std::string, Tensor>> made_;
  size_t taken_ = 0;
  double largest_ = 1;
};

Tensor zeros_like(const TensorView& view) { return view ? Tensor(DType::f64, view.shape()) : Tensor(); }
MutableTensorView view_of(Tensor& tensor) { return tensor ? tensor.mutable_view() : MutableTensorView(); }

// The lengths of tests/data/layers.py.
Tensor target_starts() { return starts_of({3, 5}); }
Tensor source_starts() { return starts_of({4, 2}); }

TEST(nn_torch, norms) {
  for (const bool is_layer : {true, false}) {
    TorchCase c(is_layer ? "layer_norm" : "rms_norm");
    const NormalizeOptions options = {.kind = is_layer ? NormKind::layer : NormKind::rms,
                                      .epsilon = is_layer ? 1e-5 : 1e-6};
    NormParameters norm;
    NormGradients d_norm;
    c.take(norm, d_norm, "norm");
    Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]);
    NormalizeState state;
    normalize(c["x"], norm.weight, norm.bias, y.mutable_view(), options, &state);
    normalize_backward(c["x"], norm.weight, state, c["d_y"], options,
                       {.x = d_x.mutable_view(), .weight = d_norm.weight, .bias = d_norm.bias});
    c.expect("y", y);
    c.expect("d_x", d_x);
    c.expect_gradients();
  }
}

TEST(nn_torch, linear) {
  TorchCase c("linear");
  Linear linear;
  LinearGradients d_linear;
  c.take(linear, d_linear, "linear");
  Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]);
  linear_forward(c["x"], linear, y.mutable_view());
  linear_backward(c["x"], linear, c["d_y"], d_x.mutable_view(), d_linear);
  c.expect("y", y);
  c.expect("d_x", d_x);
  c.expect_gradients();
}

TEST(nn_torch, activations) {
  const std::pair<const char*, Activation> all[] = {{"relu", Activation::relu},
                                                    {"gelu", Activation::gelu},
                                                    {"gelu_tanh", Activation::gelu_tanh},
                                                    {"silu", Activation::silu}};
  for (const auto& [name, activation] : all) {
    const TorchCase c(concat("activation.", name));
    Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]);
    activate(c["x"], {}, activation, y.mutable_view());
    activate_backward(c["x"], {}, activation, c["d_y"], {d_x.mutable_view()});
    c.expect("y", y);
    c.expect("d_x", d_x);
  }
}

TEST(nn_torch, multi_head_attention) {
  const Tensor targets = target_starts(), sources = source_starts();
  for (const bool cross : {false, true}) {
    TorchCase c(cross ? "cross_attention" : "self_attention");
    MultiHeadAttention parameters;
    MultiHeadAttentionGradients d_parameters;
    c.take(parameters, d_parameters, "attention");
    MultiHeadAttentionOptions options = {.heads = 3};
    options.attention.query_starts = targets.view();
    if (cross) options.attention.key_starts = sources.view();
    if (!cross) options.attention.causal = Causal::top_left();
    Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]), d_memory = zeros_like(c["memory"]);
    MultiHeadAttentionState state;
    multi_head_attention_forward(c["x"], c["memory"], parameters, options, y.mutable_view(), &state);
    multi_head_attention_backward(c["x"], c["memory"], parameters, options, state, c["d_y"],
                                  {d_x.mutable_view(), view_of(d_memory)}, d_parameters);
    c.expect("y", y);
    c.expect("d_x", d_x);
    if (cross) c.expect("d_memory", d_memory);
    c.expect_gradients();
  }
}

void expect_block(const std::string& name, const BlockOptions& options) {
  TorchCase c(name);
  Block block;
  BlockGradients d_block;
  c.take(block, d_block, "block");
  Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]), d_memory = zeros_like(c["memory"]);
  BlockState state;
  block_forward(c["x"], c["memory"], block, options, y.mutable_view(), &state);
  block_backward(c["x"], c["memory"], block, options, state, c["d_y"], {d_x.mutable_view(), view_of(d_memory)},
                 d_block);
  c.expect("y", y);
  c.expect("d_x", d_x);
  if (d_memory) c.expect("d_memory", d_memory);
  c.expect_gradients();
}

TEST(nn_torch, encoder_and_decoder_layers) {
  const Tensor targets = target_starts(), sources = source_starts();
  for (const BlockForm form : {BlockForm::pre_norm, BlockForm::post_norm}) {
    BlockOptions options = {.form = form, .attention = {.heads = 3}, .cross = {.heads = 3}};
    options.attention.attention.query_starts = targets.view();
    options.cross.attention.query_starts = targets.view();
    options.cross.attention.key_starts = sources.view();
    const char* form_name = form == BlockForm::pre_norm ? "pre_norm" : "post_norm";
    expect_block(concat("encoder_layer.", form_name), options);
    options.attention.attention.causal = Causal::top_left();
    expect_block(concat("decoder_layer.", form_name), options);
  }
}

TEST(nn_torch, blocks_of_current_decoders) {
  const Tensor positions = positions_of({0, 1, 2, 3, 4, 5});
  const RotaryTable rotary = rotary_table(positions.view(), {.width = 4}, DType::f64);
  BlockOptions options = {.norm = {.kind = NormKind::rms}, .attention = {.heads = 4, .kv_heads = 2, .rotary = &rotary}};
  options.attention.attention.causal = Causal::top_left();
  options.attention.head_norm = NormalizeOptions{.kind = NormKind::rms};
  options.feed_forward.activation = Activation::silu;
  expect_block("block.swiglu", options);

  options.attention.head_norm = {};
  options.form = BlockForm::sandwich;
  options.norm.weight_offset = 1;
  options.attention.attention.softcap = 2;
  options.feed_forward.activation = Activation::gelu_tanh;
  expect_block("block.sandwich", options);

  options.form = BlockForm::parallel;
  options.norm = {};
  options.attention.attention.softcap = 0;
  options.feed_forward.activation = Activation::gelu;
  expect_block("block.parallel", options);
}

TEST(nn_torch, encoder_decoder) {
  const Tensor targets = target_starts(), sources = source_starts();
  TorchCase c("transformer");
  EncoderDecoder model;
  EncoderDecoderGradients d_model;
  for (Stack* stack : {&model.encoder, &model.decoder}) stack->blocks.resize(2);
  for (StackGradients* stack : {&d_model.encoder, &d_model.decoder}) stack->blocks.resize(2);
  c.take(model.encoder, d_model.encoder, "encoder");
  c.take(model.decoder, d_model.decoder, "decoder");
  BlockOptions encoder = {.attention = {.heads = 3}, .feed_forward = {.activation = Activation::relu}};
  encoder.attention.attention.query_starts = sources.view();
  BlockOptions decoder = encoder;
  decoder.cross = decoder.attention;
  decoder.attention.attention = {.causal = Causal::top_left(), .query_starts = targets.view()};
  decoder.cross.attention = {.query_starts = targets.view(), .key_starts = sources.view()};
  const EncoderDecoderOptions options = {{{encoder}, NormalizeOptions{}}, {{decoder}, NormalizeOptions{}}};
  Tensor y = zeros_like(c["y"]), d_x = zeros_like(c["x"]), d_memory = zeros_like(c["memory"]);
  EncoderDecoderState state;
  encoder_decoder_forward(c["memory"], c["x"], model, options, y.mutable_view(), &state);
  encoder_decoder_backward(c["memory"], c["x"], model, options, state, c["d_y"],
                           {d_memory.mutable_view(), d_x.mutable_view()}, d_model);
  c.expect("y", y);
  c.expect("d_x", d_x);
  c.expect("d_memory", d_memory);
  c.expect_gradients();
}

}  // namespace
}  // namespace qkv::test
