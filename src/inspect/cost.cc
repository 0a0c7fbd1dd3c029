// SPDX-License-Identifier: Apache-2.0
#include "qkv/inspect/cost.h"

#include <algorithm>
#include <initializer_list>

#include "inspect/activation_cost.h"
#include "qkv/support/checked.h"

namespace qkv {
namespace {

constexpr const char* kWhat = "cost";

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) result = checked_multiply(result, factor, kWhat);
  return result;
}

void add(int64_t& sum, int64_t term) { sum = checked_add(sum, term, kWhat); }

/// Pairs of a query and a key it sees, for one head: queries seen ... seen + n - 1, each seeing itself and what is
/// before it, at most `window` keys.
int64_t causal_pairs(int64_t n, int64_t seen, std::optional<int64_t> window) {
  const int64_t most = window.value_or(checked_add(seen, n, kWhat));
  // Query i sees min(most, seen + i + 1) keys: a ramp, then a plateau.
  const int64_t ramp = std::clamp<int64_t>(most - seen, 0, n);
  const int64_t ramp_sum = checked_add(product({ramp, seen}), product({ramp, ramp + 1}) / 2, kWhat);
  return checked_add(ramp_sum, product({n - ramp, most}), kWhat);
}

/// What one stack computes, forward. `n` new tokens after `seen`; of a decoder with memory, m tokens there, whose keys
/// and values are computed in this pass or not.
struct StackPass {
  int64_t n = 0;
  int64_t seen = 0;
  bool causal = false;
  int64_t m = 0;
  bool computes_memory = false;
};

void add_pairs(const StackConfig& stack, int64_t pairs, PassCost& cost) {
  const int64_t entries = product({stack.heads, pairs});
  add(cost.score_entries, entries);
  add(cost.scores_and_values, product({2, stack.head_width, entries}));
}

void add_stack(const ModelConfig& config, const StackConfig& stack, const StackPass& pass, PassCost& cost) {
  const int64_t d = config.width, D = stack.head_width, n = pass.n;
  const bool cross = pass.causal && config.kind == ModelKind::encoder_decoder;
  for (const LayerConfig& layer : stack.layers) {
    add(cost.projections, product({n, d, D, 2 * stack.heads + 2 * stack.kv_heads}));
    add(cost.feed_forward, product({n, d, stack.feed_forward, config.gated ? 3 : 2}));
    const int64_t pairs = pass.causal ? causal_pairs(n, pass.seen, layer.window) : product({n, n});
    add_pairs(stack, pairs, cost);
    if (!cross) continue;
    add(cost.projections, product({n, d, D, 2 * stack.heads}));
    if (pass.computes_memory) add(cost.projections, product({pass.m, d, D, 2 * stack.kv_heads}));
    add_pairs(stack, product({n, pass.m}), cost);
  }
}

/// The forward of `n` tokens after `seen`.
PassCost forward(const ModelConfig& config, const CostQuery& query, int64_t n, int64_t seen, bool runs_encoder) {
  PassCost cost;
  if (config.has_encoder() && runs_encoder) {
    const bool alone = config.kind == ModelKind::encoder;
    add_stack(config, config.encoder, {.n = alone ? n : query.memory_tokens}, cost);
  }
  if (config.has_decoder()) {
    add_stack(config, config.decoder,
              {.n = n, .seen = seen, .causal = true, .m = query.memory_tokens, .computes_memory = runs_encoder}, cost);
  }
  cost.head = product({n, config.width, config.vocabulary});
  if (config.mask_head) add(cost.head, product({n, config.width, config.width}));
  return cost;
}

PassCost training(const ModelConfig& config, const CostQuery& query) {
  PassCost cost = forward(config, query, query.tokens, 0, true);
  for (int64_t* term : {&cost.projections, &cost.feed_forward, &cost.head}) *term = product({3, *term});
  cost.scores_and_values = product({7, cost.scores_and_values / 2});  // two products forward, five backward
  return cost;
}

void count_stack(const ModelConfig& config, const StackConfig& stack, bool cross, ParameterCount& count) {
  const int64_t d = config.width, D = stack.head_width, layers = static_cast<int64_t>(stack.layers.size());
  const int64_t attentions = product({layers, cross ? 2 : 1});
  const int64_t norm = config.norm == NormKind::layer ? 2 * d : d;
  const int64_t norms = (cross ? 3 : 2) * (config.form == BlockForm::sandwich ? 2 : 1);
  add(count.projections, product({attentions, d, D, 2 * stack.heads + 2 * stack.kv_heads}));
  add(count.feed_forward, product({layers, d, stack.feed_forward, config.gated ? 3 : 2}));
  if (config.qkv_bias) add(count.biases, product({attentions, D, stack.heads + 2 * stack.kv_heads}));
  if (config.output_bias) add(count.biases, product({attentions, d}));
  if (config.feed_forward_bias) {
    add(count.biases, product({layers, checked_add(d, product({stack.feed_forward, config.gated ? 2 : 1}), kWhat)}));
  }
  add(count.norms, product({layers, norms, norm}));
  if (config.query_key_norm) add(count.norms, product({attentions, 2, D}));
  if (config.final_norm) add(count.norms, norm);
  if (config.embedding_norm) add(count.norms, norm);
  if (config.learned_positions) add(count.embeddings, product({config.positions + config.first_position, d}));
  add(count.embeddings, product({config.relative_buckets, stack.heads}));
}

ParameterCount count_parameters(const ModelConfig& config) {
  ParameterCount count;
  const int64_t d = config.width, table = product({config.vocabulary, d});
  count.embeddings = checked_add(table, product({config.token_types, d}), kWhat);
  if (config.has_encoder()) count_stack(config, config.encoder, false, count);
  if (config.has_decoder()) count_stack(config, config.decoder, config.kind == ModelKind::encoder_decoder, count);
  if (!config.tied_head) add(count.head, table);
  if (config.mask_head) add(count.head, checked_add(product({d, d}), 3 * d, kWhat));
  if (config.head_bias) add(count.head, config.vocabulary);
  return count;
}

void check_query(const ModelConfig& config, const CostQuery& query) {
  require(query.tokens >= 1 && query.memory_tokens >= 0 && query.cache >= 0, "cost: expected at least 1 token, got ",
          query.tokens, ", ", query.memory_tokens, " of a memory and ", query.cache, " in a cache");
  require(config.has_decoder() || query.cache == 0, "cost: a cache needs a decoder, ", config.model_type, " is an ",
          name(config.kind));
  const bool both = config.kind == ModelKind::encoder_decoder;
  require(both == (query.memory_tokens > 0), "cost: ", config.model_type, " is ", both ? "an " : "no ",
          "encoder-decoder: expected ", both ? "at least one memory token" : "no memory tokens", ", got ",
          query.memory_tokens);
  if (!config.learned_positions) return;
  const int64_t longest = std::max(checked_add(query.cache, query.tokens, kWhat), query.memory_tokens);
  require(longest <= config.positions, "cost: ", config.model_type, " has positions for ", config.positions,
          " tokens, got ", longest);
}

}  // namespace

ModelCost model_cost(const ModelConfig& config, const CostQuery& query) {
  check_query(config, query);
  ModelCost cost;
  cost.parameters = count_parameters(config);
  const int64_t total = cost.parameters.total(), element = size_of(query.dtype);
  cost.weight_bytes = product({total, element});
  cost.gradient_bytes = product({total, 4});
  cost.optimizer_bytes = product({total, 8});
  cost.training = training(config, query);
  cost.training.activation_bytes = inspect::training_activations(config, query);
  cost.prefill = forward(config, query, query.tokens, query.cache, true);
  cost.prefill.activation_bytes = inspect::inference_activations(config, query, {query.tokens, true});
  if (!config.has_decoder()) return cost;
  const int64_t context = checked_add(query.cache, query.tokens, kWhat);
  cost.decode = forward(config, query, 1, context - 1, false);
  cost.decode.activation_bytes = inspect::inference_activations(config, query, {1, false});
  const StackConfig& stack = config.decoder;
  cost.cache_bytes = product({static_cast<int64_t>(stack.layers.size()), stack.kv_heads,
                              checked_add(context, query.memory_tokens, kWhat), 2 * stack.head_width, element});
  return cost;
}

}  // namespace qkv
