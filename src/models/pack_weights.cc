// SPDX-License-Identifier: Apache-2.0
#include "models/transformer_parts.h"

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

}  // namespace

void pack_weights(ModelWeights& weights, const TransformerOptions& options) {
  pack_stack(weights.encoder, options);
  pack_stack(weights.decoder, options);
  pack_linear(weights.head_dense, options);
  pack_linear(weights.head, options);
  weights.fused_parts.clear();
}

}  // namespace qkv::models
