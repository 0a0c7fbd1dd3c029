// SPDX-License-Identifier: Apache-2.0
#include "cli/cost_measure.h"

#include <algorithm>
#include <functional>

#include "cli/verbs.h"
#include "qkv/models/transformer.h"
#include "qkv/support/work_count.h"

namespace qkv::cli {
namespace {

/// Runs `work` once while kernels count, then until two seconds or nine runs are over; `reset` comes before each run.
Measured timed(const char* name, int64_t predicted, const std::function<void()>& reset,
               const std::function<void()>& work) {
  reset();
  count_work(true);
  work();
  const WorkCount count = work_count();
  count_work(false);
  std::vector<double> seconds;
  const Stopwatch all;
  do {
    reset();
    const Stopwatch watch;
    work();
    seconds.push_back(watch.seconds());
  } while (seconds.size() < 9 && all.seconds() < 2);
  std::sort(seconds.begin(), seconds.end());
  return {.name = name,
          .predicted = predicted,
          .counted = count.multiplies + count.score_multiplies,
          .score_entries = count.score_entries,
          .seconds = seconds[seconds.size() / 2]};
}

/// Any ids will do.
std::vector<uint32_t> some_tokens(int64_t count, int64_t vocabulary) {
  std::vector<uint32_t> tokens;
  for (int64_t n = 0; n < count; ++n) tokens.push_back(static_cast<uint32_t>(n * 7919 % vocabulary));
  return tokens;
}

std::vector<Measured> measure_decoder(const Transformer& model, const CostQuery& query, const ModelCost& cost) {
  const int64_t vocabulary = model.config().vocabulary, context = query.cache + query.tokens;
  const std::vector<uint32_t> tokens = some_tokens(context, vocabulary);
  const std::vector<uint32_t> memory = some_tokens(query.memory_tokens, vocabulary);
  const std::span<const uint32_t> all(tokens);
  const auto cached = static_cast<size_t>(query.cache);
  const auto fresh = [&] {
    return query.memory_tokens > 0 ? model.start(TokenBatch{.tokens = memory}) : model.start(1);
  };
  DecoderState state = fresh();
  if (cached > 0) model.decode(state, {.tokens = all.first(cached)});
  std::vector<Measured> result;
  result.push_back(timed(
      "prefill", cost.prefill.total_with_head(), [&] { state.truncate(0, query.cache); },
      [&] {
        if (query.memory_tokens > 0) fresh();  // the encoder's work is part of it, that on the cached tokens is not
        model.decode(state, {.tokens = all.subspan(cached)}, LogitRows::all);
      }));
  result.back().cache_bytes = state.bytes();
  result.push_back(timed(
      "decode step", cost.decode.total_with_head(), [&] { state.truncate(0, context - 1); },
      [&] { model.decode(state, {.tokens = all.last(1)}); }));
  result.back().cache_bytes = state.bytes();
  return result;
}

}  // namespace

std::vector<Measured> measure_cost(const ModelConfig& config, const std::string& folder, const CostQuery& query,
                                   int threads) {
  const TransformerOptions options{.dtype = query.dtype, .threads = threads};
  const Transformer model =
      folder.empty() ? Transformer::random(config, 1, options) : Transformer::from_folder(folder, options);
  const ModelCost cost = model_cost(config, query);
  if (config.has_decoder()) return measure_decoder(model, query, cost);
  const std::vector<uint32_t> tokens = some_tokens(query.tokens, config.vocabulary);
  return {timed(
      "forward", cost.prefill.total(), [] {}, [&] { model.hidden({.tokens = tokens}); })};
}

}  // namespace qkv::cli
