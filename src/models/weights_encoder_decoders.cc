// SPDX-License-Identifier: Apache-2.0
//
// T5 and BART.
#include "models/weights.h"

namespace qkv::models {
namespace {

void bind_t5_attention(Checkpoint& checkpoint, const ModelConfig& config, const StackConfig& stack,
                       const std::string& prefix, MultiHeadAttention& attention) {
  const int64_t inner = stack.heads * stack.head_width, width = config.width;
  attention.q = checkpoint.linear(prefix + "q", inner, width, false);
  attention.k = checkpoint.linear(prefix + "k", inner, width, false);
  attention.v = checkpoint.linear(prefix + "v", inner, width, false);
  attention.out = checkpoint.linear(prefix + "o", width, inner, false);
}

void bind_t5_stack(Checkpoint& checkpoint, const ModelConfig& config, bool decoder, ModelWeights& weights) {
  const StackConfig& stack = decoder ? config.decoder : config.encoder;
  Stack& blocks = decoder ? weights.decoder : weights.encoder;
  const std::string name = decoder ? "decoder." : "encoder.";
  const int64_t width = config.width, hidden = stack.feed_forward;
  // One table for all layers of a stack; in f32, as attention wants it.
  const TensorView stored = checkpoint.take(name + "block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                            {config.relative_buckets, stack.heads});
  const Tensor& table = weights.owned.emplace_back(converted(transposed(stored), DType::f32));
  const TensorView view = table.view();
  for (size_t n = 0; n < stack.layers.size(); ++n) {
    const std::string layer = name + "block." + std::to_string(n) + ".layer.";
    Block& block = blocks.blocks.emplace_back();
    bind_t5_attention(checkpoint, config, stack, layer + "0.SelfAttention.", block.attention);
    block.attention.table = view;
    block.attention_norm = checkpoint.norm(layer + "0.layer_norm", width, false);
    if (decoder) {
      bind_t5_attention(checkpoint, config, stack, layer + "1.EncDecAttention.", block.cross);
      block.cross_norm = checkpoint.norm(layer + "1.layer_norm", width, false);
    }
    const std::string last = layer + (decoder ? "2." : "1.");
    if (config.gated) {
      block.feed_forward.gate = checkpoint.linear(last + "DenseReluDense.wi_0", hidden, width, false);
      block.feed_forward.up = checkpoint.linear(last + "DenseReluDense.wi_1", hidden, width, false);
    } else {
      block.feed_forward.up = checkpoint.linear(last + "DenseReluDense.wi", hidden, width, false);
    }
    block.feed_forward.down = checkpoint.linear(last + "DenseReluDense.wo", width, hidden, false);
    block.feed_forward_norm = checkpoint.norm(last + "layer_norm", width, false);
  }
  blocks.final_norm = checkpoint.norm(name + "final_layer_norm", width, false);
}

void bind_bart_attention(Checkpoint& checkpoint, int64_t width, const std::string& prefix,
                         MultiHeadAttention& attention) {
  attention.q = checkpoint.linear(prefix + ".q_proj", width, width, true);
  attention.k = checkpoint.linear(prefix + ".k_proj", width, width, true);
  attention.v = checkpoint.linear(prefix + ".v_proj", width, width, true);
  attention.out = checkpoint.linear(prefix + ".out_proj", width, width, true);
}

void bind_bart_stack(Checkpoint& checkpoint, const ModelConfig& config, bool decoder, ModelWeights& weights) {
  const StackConfig& stack = decoder ? config.decoder : config.encoder;
  Stack& blocks = decoder ? weights.decoder : weights.encoder;
  InputWeights& input = decoder ? weights.decoder_input : weights.encoder_input;
  const std::string name = decoder ? "decoder." : "encoder.";
  const int64_t width = config.width, hidden = stack.feed_forward;
  input.positions = checkpoint.take(name + "embed_positions.weight", {config.first_position + config.positions, width});
  input.norm = checkpoint.norm(name + "layernorm_embedding", width, true);
  for (size_t n = 0; n < stack.layers.size(); ++n) {
    const std::string layer = name + "layers." + std::to_string(n) + ".";
    Block& block = blocks.blocks.emplace_back();
    bind_bart_attention(checkpoint, width, layer + "self_attn", block.attention);
    block.attention_norm = checkpoint.norm(layer + "self_attn_layer_norm", width, true);
    if (decoder) {
      bind_bart_attention(checkpoint, width, layer + "encoder_attn", block.cross);
      block.cross_norm = checkpoint.norm(layer + "encoder_attn_layer_norm", width, true);
    }
    block.feed_forward.up = checkpoint.linear(layer + "fc1", hidden, width, true);
    block.feed_forward.down = checkpoint.linear(layer + "fc2", width, hidden, true);
    block.feed_forward_norm = checkpoint.norm(layer + "final_layer_norm", width, true);
  }
}

}  // namespace

ModelWeights bind_t5(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  checkpoint.unify_copies("shared.weight", {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"});
  const Dims shape{config.vocabulary, config.width};
  weights.embedding = checkpoint.take("shared.weight", shape);
  // Later files say that the head is tied also where it is not: what the file holds decides.
  const bool own_head = checkpoint.has("lm_head.weight", !config.tied_head);
  weights.has_head = own_head || config.tied_head;
  if (weights.has_head) weights.head.weight = own_head ? checkpoint.take("lm_head.weight", shape) : weights.embedding;
  bind_t5_stack(checkpoint, config, false, weights);
  bind_t5_stack(checkpoint, config, true, weights);
  checkpoint.pass_over({"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"});
  return weights;
}

ModelWeights bind_bart(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  checkpoint.unify_copies("shared.weight", {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"});
  bind_head(checkpoint, config, "shared.weight", weights);
  if (checkpoint.has("final_logits_bias")) {
    const TensorView bias = checkpoint.take("final_logits_bias", {1, config.vocabulary});
    weights.head.bias = TensorView(bias.dtype(), bias.data(), {config.vocabulary});
  }
  bind_bart_stack(checkpoint, config, false, weights);
  bind_bart_stack(checkpoint, config, true, weights);
  checkpoint.pass_over({"encoder.version", "decoder.version"});
  checkpoint.keep({"classification_head.*", "qa_outputs.*"});
  return weights;
}

}  // namespace qkv::models
