// SPDX-License-Identifier: Apache-2.0
//
// GPT-2, GPT-NeoX, and the Llama family with Gemma-2.
#include "models/weights.h"
#include "qkv/support/error.h"

namespace qkv::models {
namespace {

/// Rows [first, first + rows) of a matrix or vector.
TensorView slice(const TensorView& tensor, int64_t first, int64_t rows) {
  Dims shape = tensor.shape();
  shape[0] = rows;
  return {tensor.dtype(), tensor.at(first * tensor.stride(0)), shape, tensor.strides()};
}

/// Queries, keys or values (`part` 0, 1, 2) of a tensor whose rows are [heads, 3, head_width], as a copy.
TensorView part_of_heads(const TensorView& fused, int64_t part, const StackConfig& stack, std::vector<Tensor>& owned) {
  const int64_t D = stack.head_width;
  Dims shape = fused.shape(), rows = fused.shape();
  shape[0] = stack.heads * D;
  rows[0] = D;
  Tensor copied(fused.dtype(), shape);
  for (int64_t h = 0; h < stack.heads; ++h) {
    const MutableTensorView all = copied.mutable_view();
    copy(slice(fused, (3 * h + part) * D, D),
         MutableTensorView(fused.dtype(), all.at(h * D * all.stride(0)), rows, all.strides()));
  }
  owned.push_back(copied);
  return copied.view();
}

void bind_gated_attention(Checkpoint& checkpoint, const ModelConfig& config, const std::string& prefix,
                          MultiHeadAttention& attention) {
  const StackConfig& stack = config.decoder;
  const int64_t D = stack.head_width, width = config.width;
  attention.q = checkpoint.linear(prefix + "q_proj", stack.heads * D, width, config.qkv_bias);
  attention.k = checkpoint.linear(prefix + "k_proj", stack.kv_heads * D, width, config.qkv_bias);
  attention.v = checkpoint.linear(prefix + "v_proj", stack.kv_heads * D, width, config.qkv_bias);
  attention.out = checkpoint.linear(prefix + "o_proj", width, stack.heads * D, config.output_bias);
  if (config.query_key_norm) {
    attention.q_norm = checkpoint.norm(prefix + "q_norm", D, false);
    attention.k_norm = checkpoint.norm(prefix + "k_norm", D, false);
  }
}

}  // namespace

ModelWeights bind_gpt2(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  const int64_t width = config.width, hidden = config.decoder.feed_forward;
  bind_head(checkpoint, config, "wte.weight", weights);
  weights.decoder_input.positions = checkpoint.take("wpe.weight", {config.positions, width});
  for (size_t n = 0; n < config.decoder.layers.size(); ++n) {
    const std::string layer = "h." + std::to_string(n) + ".";
    Block& block = weights.decoder.blocks.emplace_back();
    const Linear fused = checkpoint.transposed_linear(layer + "attn.c_attn", 3 * width, width);
    Linear* const parts[] = {&block.attention.q, &block.attention.k, &block.attention.v};
    for (int64_t part = 0; part < 3; ++part) {
      parts[part]->weight = slice(fused.weight, part * width, width);
      parts[part]->bias = slice(fused.bias, part * width, width);
    }
    block.attention.out = checkpoint.transposed_linear(layer + "attn.c_proj", width, width);
    block.attention_norm = checkpoint.norm(layer + "ln_1", width, true);
    block.feed_forward_norm = checkpoint.norm(layer + "ln_2", width, true);
    block.feed_forward.up = checkpoint.transposed_linear(layer + "mlp.c_fc", hidden, width);
    block.feed_forward.down = checkpoint.transposed_linear(layer + "mlp.c_proj", width, hidden);
  }
  weights.decoder.final_norm = checkpoint.norm("ln_f", width, true);
  checkpoint.pass_over({"h.#.attn.bias", "h.#.attn.masked_bias"});
  checkpoint.keep({"score.weight", "multiple_choice_head.*"});
  return weights;
}

ModelWeights bind_gpt_neox(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  const StackConfig& stack = config.decoder;
  const int64_t width = config.width, hidden = stack.feed_forward;
  checkpoint.unify_copies("lm_head.weight", {"embed_out.weight"});
  bind_head(checkpoint, config, "embed_in.weight", weights);
  for (size_t n = 0; n < stack.layers.size(); ++n) {
    const std::string layer = "layers." + std::to_string(n) + ".";
    Block& block = weights.decoder.blocks.emplace_back();
    const Linear fused = checkpoint.linear(layer + "attention.query_key_value", 3 * width, width, config.qkv_bias);
    Linear* const parts[] = {&block.attention.q, &block.attention.k, &block.attention.v};
    for (int64_t part = 0; part < 3; ++part) {
      parts[part]->weight = part_of_heads(fused.weight, part, stack, weights.fused_parts);
      if (fused.bias) parts[part]->bias = part_of_heads(fused.bias, part, stack, weights.owned);
    }
    block.attention.out = checkpoint.linear(layer + "attention.dense", width, width, config.output_bias);
    block.attention_norm = checkpoint.norm(layer + "input_layernorm", width, true);
    block.feed_forward_norm = checkpoint.norm(layer + "post_attention_layernorm", width, true);
    block.feed_forward.up = checkpoint.linear(layer + "mlp.dense_h_to_4h", hidden, width, true);
    block.feed_forward.down = checkpoint.linear(layer + "mlp.dense_4h_to_h", width, hidden, true);
  }
  weights.decoder.final_norm = checkpoint.norm("final_layer_norm", width, true);
  checkpoint.pass_over({"layers.#.attention.bias", "layers.#.attention.masked_bias",
                        "layers.#.attention.rotary_emb.inv_freq", "rotary_emb.inv_freq"});
  checkpoint.keep({"score.weight"});
  return weights;
}

ModelWeights bind_llama(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  const int64_t width = config.width, hidden = config.decoder.feed_forward;
  const bool sandwich = config.form == BlockForm::sandwich;
  bind_head(checkpoint, config, "embed_tokens.weight", weights);
  for (size_t n = 0; n < config.decoder.layers.size(); ++n) {
    const std::string layer = "layers." + std::to_string(n) + ".";
    Block& block = weights.decoder.blocks.emplace_back();
    bind_gated_attention(checkpoint, config, layer + "self_attn.", block.attention);
    const bool bias = config.feed_forward_bias;
    block.feed_forward.gate = checkpoint.linear(layer + "mlp.gate_proj", hidden, width, bias);
    block.feed_forward.up = checkpoint.linear(layer + "mlp.up_proj", hidden, width, bias);
    block.feed_forward.down = checkpoint.linear(layer + "mlp.down_proj", width, hidden, bias);
    block.attention_norm = checkpoint.norm(layer + "input_layernorm", width, false);
    NormParameters& after = sandwich ? block.attention_after_norm : block.feed_forward_norm;
    after = checkpoint.norm(layer + "post_attention_layernorm", width, false);
    if (sandwich) {
      block.feed_forward_norm = checkpoint.norm(layer + "pre_feedforward_layernorm", width, false);
      block.feed_forward_after_norm = checkpoint.norm(layer + "post_feedforward_layernorm", width, false);
    }
  }
  weights.decoder.final_norm = checkpoint.norm("norm", width, false);
  checkpoint.pass_over({"layers.#.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"});
  checkpoint.keep({"score.weight"});
  return weights;
}

}  // namespace qkv::models
