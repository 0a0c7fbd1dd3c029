// SPDX-License-Identifier: Apache-2.0
#include "models/transformer_parts.h"
#include "qkv/nn/visit.h"

namespace qkv::models {
namespace {

/// Packs a weight, rounded first where the model computes in bf16. The view goes: copies it may point to are freed.
void pack_linear(Linear& linear, const TransformerOptions& options) {
  if (!linear.weight) return;
  const bool rounds = options.dtype == DType::bf16 && linear.weight.dtype() != DType::bf16;
  const Tensor rounded = rounds ? converted(linear.weight, DType::bf16) : Tensor();
  linear.packed = PackedMatrix(transposed(rounds ? rounded.view() : linear.weight), options.threads);
  linear.weight = {};
}

void pack_attention(MultiHeadAttention& attention, const TransformerOptions& options) {
  for (Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.out}) pack_linear(*linear, options);
}

void pack_stack(Stack& stack, const TransformerOptions& options) {
  for (Block& block : stack.blocks) {
    pack_attention(block.attention, options);
    pack_attention(block.cross, options);
    for (Linear* linear : {&block.feed_forward.up, &block.feed_forward.gate, &block.feed_forward.down}) {
      pack_linear(*linear, options);
    }
  }
}

/// Rounds what no product reads as a packed matrix to bf16: embeddings, biases, norms.
void round_others(ModelWeights& weights) {
  const auto round = [&](const std::string&, TensorView& view) {
    if (!view || view.dtype() == DType::bf16) return;
    view = weights.owned.emplace_back(converted(view, DType::bf16)).view();
  };
  for (Stack* stack : {&weights.encoder, &weights.decoder}) {
    // A table is f32 for attention, whatever it was rounded to, and one for all layers.
    const TensorView table = stack->blocks.empty() ? TensorView() : stack->blocks.front().attention.table;
    for (Block& block : stack->blocks) block.attention.table = {};
    visit(*stack, "", round);
    if (!table) continue;
    const Tensor rounded = converted(converted(table, DType::bf16).view(), DType::f32);
    for (Block& block : stack->blocks) block.attention.table = rounded.view();
    weights.owned.push_back(rounded);
  }
  for (InputWeights* input : {&weights.encoder_input, &weights.decoder_input}) {
    round("", input->positions);
    round("", input->token_types);
    visit(input->norm, "", round);
  }
  round("", weights.embedding);
  visit(weights.head_dense, "", round);
  visit(weights.head_norm, "", round);
  visit(weights.head, "", round);
}

}  // namespace

void pack_weights(ModelWeights& weights, const TransformerOptions& options) {
  pack_stack(weights.encoder, options);
  pack_stack(weights.decoder, options);
  pack_linear(weights.head_dense, options);
  pack_linear(weights.head, options);
  weights.fused_parts.clear();
  if (options.dtype == DType::bf16) round_others(weights);
}

}  // namespace qkv::models
