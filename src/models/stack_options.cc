// SPDX-License-Identifier: Apache-2.0
#include "models/transformer_parts.h"

namespace qkv::models {
namespace {

NormalizeOptions norm_options(const ModelConfig& config, int threads) {
  return {.kind = config.norm,
          .epsilon = config.norm_epsilon,
          .weight_offset = config.norm_plus_one ? 1.0 : 0.0,
          .threads = threads};
}

MultiHeadAttentionOptions attention_options(const ModelConfig& config, const StackConfig& stack,
                                            const LayerConfig& layer, bool is_decoder, int threads) {
  MultiHeadAttentionOptions options;
  options.heads = stack.heads;
  options.kv_heads = stack.kv_heads;
  options.threads = threads;
  AttentionOptions& attention = options.attention;
  attention.scale = layer.scale;
  attention.softcap = config.score_softcap;
  attention.threads = threads;
  attention.buckets.kind = is_decoder ? Buckets::Kind::causal : Buckets::Kind::bidirectional;
  attention.buckets.max_distance = config.relative_distance;
  if (is_decoder) attention.causal = Causal::bottom_right();
  if (layer.window) attention.window.left = *layer.window - 1;
  if (config.query_key_norm) {
    options.head_norm = norm_options(config, threads);
    options.head_norm->weight_offset = 0;
  }
  return options;
}

}  // namespace

StackOptions stack_options(const ModelConfig& config, const StackConfig& stack, bool is_decoder, int threads) {
  StackOptions options;
  for (const LayerConfig& layer : stack.layers) {
    BlockOptions& block = options.blocks.emplace_back();
    block.form = config.form;
    block.norm = norm_options(config, threads);
    block.attention = attention_options(config, stack, layer, is_decoder, threads);
    if (is_decoder && config.kind == ModelKind::encoder_decoder) {
      block.cross = attention_options(config, stack, LayerConfig{.window = {}, .scale = layer.scale}, false, threads);
    }
    block.feed_forward.activation = config.activation;
    block.feed_forward.threads = threads;
    block.threads = threads;
  }
  if (config.final_norm) options.final_norm = norm_options(config, threads);
  return options;
}

BoundOptions::BoundOptions(const StackOptions& options, const ModelConfig& config, const StackConfig& stack,
                           const TokenRows& rows)
    : options_(options) {
  rotary_.reserve(config.rotary.size());
  for (const RotaryOptions& rotary : config.rotary) rotary_.push_back(rotary_table(rows.positions.view(), rotary));
  for (size_t n = 0; n < options_.blocks.size(); ++n) {
    BlockOptions& block = options_.blocks[n];
    block.attention.attention.query_starts = rows.starts.view();
    block.cross.attention.query_starts = rows.starts.view();
    const int index = stack.layers[n].rotary;
    if (index >= 0) block.attention.rotary = &rotary_[static_cast<size_t>(index)];
  }
}

BoundOptions::BoundOptions(const StackOptions& options, const ModelConfig& config, const StackConfig& stack,
                           const TokenRows& rows, const TensorView& memory_starts)
    : BoundOptions(options, config, stack, rows) {
  for (BlockOptions& block : options_.blocks) {
    block.attention.attention.key_starts = rows.starts.view();
    block.cross.attention.key_starts = memory_starts;
  }
}

}  // namespace qkv::models
