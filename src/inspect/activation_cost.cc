// SPDX-License-Identifier: Apache-2.0
#include "inspect/activation_cost.h"

#include <algorithm>

#include "qkv/support/checked.h"

namespace qkv::inspect {
namespace {

constexpr const char* kWhat = "cost";

/// Numbers that the state of one norm holds for each row.
int64_t norm_numbers(const ModelConfig& config) { return config.norm == NormKind::layer ? 3 : 1; }

/// Numbers a row that attention's state holds: of a query row, and of a row of keys.
struct AttentionNumbers {
  int64_t query = 0, key = 0;
};
AttentionNumbers attention_numbers(const ModelConfig& config, const StackConfig& stack) {
  const int64_t H = stack.heads, Hkv = stack.kv_heads, D = stack.head_width;
  AttentionNumbers numbers{.query = 2 * H * D + 2 * H, .key = 2 * Hkv * D};
  if (config.query_key_norm) {
    numbers.query += H * D + H;
    numbers.key += Hkv * D + Hkv;
  }
  return numbers;
}

/// Numbers a row of the layer itself, and a row of the memory it attends to.
struct LayerNumbers {
  int64_t row = 0, memory_row = 0;
};
LayerNumbers layer_numbers(const ModelConfig& config, const StackConfig& stack, bool cross) {
  const int64_t d = config.width;
  const bool sandwich = config.form == BlockForm::sandwich;
  const AttentionNumbers attention = attention_numbers(config, stack);
  LayerNumbers numbers;
  // Every sublayer: the normed rows it read, or the sum its norm read; in a sandwich also what it gave.
  const int64_t sublayer = (d + norm_numbers(config)) * (sandwich ? 2 : 1);
  numbers.row =
      (cross ? 3 : 2) * sublayer + attention.query + attention.key + stack.feed_forward * (config.gated ? 3 : 2);
  if (config.form != BlockForm::parallel) numbers.row += d;  // after attention
  if (cross) {
    numbers.row += attention.query + d;  // after attention to the memory
    numbers.memory_row = attention.key;
  }
  return numbers;
}

int64_t stack_numbers(const ModelConfig& config, const StackConfig& stack, bool cross, int64_t n, int64_t m) {
  const LayerNumbers layer = layer_numbers(config, stack, cross);
  const auto layers = static_cast<int64_t>(stack.layers.size());
  int64_t between = (layers - 1) * config.width;
  if (config.final_norm) between += config.width + norm_numbers(config);
  const int64_t rows = checked_add(checked_multiply(layers, layer.row, kWhat), between + 2 * config.width, kWhat);
  return checked_add(checked_multiply(n, rows, kWhat),
                     checked_multiply(m, checked_multiply(layers, layer.memory_row, kWhat), kWhat), kWhat);
}

/// Rows beside those that a block reads and writes (block.cc, sublayer.h): what a norm gave or is to read, in a
/// sandwich also what the sublayer gave, side by side the inputs of both sublayers.
int64_t rows_beside(BlockForm form) { return form == BlockForm::sandwich || form == BlockForm::parallel ? 2 : 1; }

/// Bytes that live in the widest moment of a layer of n rows, forward without a state.
int64_t layer_bytes(const ModelConfig& config, const StackConfig& stack, int64_t n, bool cached, int64_t element) {
  const int64_t queries = stack.heads * stack.head_width, keys = stack.kv_heads * stack.head_width;
  // Queries, keys, values and outputs; with a cache, which has taken keys and values, both others once more, padded to
  // the longest sequence.
  const int64_t attention = cached ? std::max(4 * queries, 2 * keys) : 2 * queries + 2 * keys;
  const int64_t feed_forward = stack.feed_forward * (config.gated ? 2 : 1);
  const int64_t numbers = (1 + rows_beside(config.form)) * config.width + std::max(attention, feed_forward);
  int64_t tables = 0;
  for (const RotaryOptions& rotary : config.rotary) tables += 4 * rotary.width;
  return checked_multiply(n, checked_add(checked_multiply(numbers, element, kWhat), tables, kWhat), kWhat);
}

}  // namespace

int64_t training_activations(const ModelConfig& config, const CostQuery& query) {
  const bool both = config.kind == ModelKind::encoder_decoder;
  int64_t numbers = checked_multiply(query.tokens, config.vocabulary, kWhat);
  numbers =
      checked_add(numbers, stack_numbers(config, config.main_stack(), both, query.tokens, query.memory_tokens), kWhat);
  if (both) {
    numbers = checked_add(numbers, stack_numbers(config, config.encoder, false, query.memory_tokens, 0), kWhat);
  }
  return checked_multiply(numbers, 4, kWhat);
}

int64_t inference_activations(const ModelConfig& config, const CostQuery& query, const InferencePass& pass) {
  const bool both = config.kind == ModelKind::encoder_decoder, decodes = config.has_decoder();
  const int64_t element = size_of(query.dtype);
  int64_t bytes = layer_bytes(config, config.main_stack(), pass.tokens, decodes, element);
  int64_t logits = 4 * config.vocabulary + config.width * element;
  if (config.mask_head || config.head_scale != 1) logits += config.width * element;  // the rows that the head reads
  bytes = std::max(bytes, checked_multiply(pass.tokens, logits, kWhat));
  if (!both || !pass.runs_encoder) return bytes;
  // Before that the encoder runs, and its output becomes keys and values of one layer after the other.
  const int64_t memory_row = config.width + 2 * config.decoder.kv_heads * config.decoder.head_width;
  const int64_t memory = checked_multiply(checked_multiply(query.memory_tokens, memory_row, kWhat), element, kWhat);
  return std::max({bytes, memory, layer_bytes(config, config.encoder, query.memory_tokens, false, element)});
}

}  // namespace qkv::inspect
