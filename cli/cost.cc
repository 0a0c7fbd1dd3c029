// SPDX-License-Identifier: Apache-2.0
#include "qkv/inspect/cost.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cost_measure.h"
#include "cli/model_files.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

void add(CLI::App& verb, Call& call) {
  verb.add_option("CONFIG", call.model, "a config.json, or a folder that holds one")->required()->type_name("");
  const auto count = [&](const char* flag, const char* help, int64_t& value, int64_t least) {
    return add_value(verb, call, flag, "N", help, [flag, least, &value](const std::string& text) {
      value = parse_integer(flag, text, least, int64_t{1} << 40);
    });
  };
  count("--tokens", "new tokens of one sequence", call.run.count, 1)->required();
  count("--memory-tokens", "tokens of the encoder, of an encoder-decoder", call.run.memory_count, 1);
  count("--cache", "tokens a decoder has seen before these (default 0)", call.run.cache_count, 0);
  add_switch(verb, call.run.measure, "--measure", "also run the model, and say what was counted and how long it took");
  add_machine_options(verb, call);
  add_value(verb, call, "--dtype", "TYPE", "of weights and cache, f32 or bf16 (default f32)",
            [&](const std::string& text) { call.run.dtype = parse_model_dtype("--dtype", text); })
      ->group("How to run");
}

ordered_json describe(const PassCost& pass) {
  return {{"projections", pass.projections},
          {"scores_and_values", pass.scores_and_values},
          {"feed_forward", pass.feed_forward},
          {"total", pass.total()},
          {"head", pass.head},
          {"total_with_head", pass.total_with_head()},
          {"score_entries", pass.score_entries},
          {"activation_bytes", pass.activation_bytes}};
}

std::string as_json(const ModelConfig& config, const ModelCost& cost, const std::vector<Measured>& measured) {
  const ParameterCount& count = cost.parameters;
  ordered_json object = {{"model_type", config.model_type},
                         {"kind", name(config.kind)},
                         {"parameters",
                          {{"embeddings", count.embeddings},
                           {"projections", count.projections},
                           {"feed_forward", count.feed_forward},
                           {"biases", count.biases},
                           {"norms", count.norms},
                           {"head", count.head},
                           {"total", count.total()}}},
                         {"training", describe(cost.training)},
                         {"prefill", describe(cost.prefill)},
                         {"weight_bytes", cost.weight_bytes},
                         {"gradient_bytes", cost.gradient_bytes},
                         {"optimizer_bytes", cost.optimizer_bytes},
                         {"cache_bytes", cost.cache_bytes}};
  if (config.has_decoder()) object["decode"] = describe(cost.decode);
  for (const Measured& one : measured) {
    object["measured"][one.name] = {{"predicted", one.predicted},
                                    {"counted", one.counted},
                                    {"score_entries", one.score_entries},
                                    {"seconds", one.seconds},
                                    {"cache_bytes", one.cache_bytes}};
  }
  return object.dump() + "\n";
}

/// 1234567 as 1,234,567.
std::string grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string result;
  for (size_t n = 0; n < digits.size(); ++n) {
    if (n > 0 && (digits.size() - n) % 3 == 0) result += ',';
    result += digits[n];
  }
  return result;
}

class Table {
 public:
  void row(const std::string& title, std::initializer_list<std::string> cells) {
    text_ << std::left << std::setw(28) << title << std::right;
    for (const std::string& cell : cells) text_ << std::setw(24) << cell;
    text_ << "\n";
  }
  void line(const std::string& text) { text_ << text << "\n"; }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

std::string as_text(const ModelConfig& config, const CostQuery& query, const ModelCost& cost,
                    const std::vector<Measured>& measured) {
  Table table;
  const bool decodes = config.has_decoder();
  const StackConfig& stack = config.main_stack();
  table.line(concat(config.model_type, ", ", name(config.kind), ": ", stack.layers.size(), " layers of width ",
                    config.width, ", ", stack.heads, " heads of ", stack.head_width, ", feed-forward ",
                    stack.feed_forward, ", vocabulary ", config.vocabulary));
  table.line(concat(query.tokens, " tokens", query.cache > 0 ? concat(" after ", query.cache) : "",
                    query.memory_tokens > 0 ? concat(", a memory of ", query.memory_tokens) : "", "\n"));
  const ParameterCount& count = cost.parameters;
  table.row("parameters", {grouped(count.total())});
  table.row("  embeddings", {grouped(count.embeddings)});
  table.row("  projections", {grouped(count.projections)});
  table.row("  feed-forward", {grouped(count.feed_forward)});
  table.row("  biases", {grouped(count.biases)});
  table.row("  norms", {grouped(count.norms)});
  table.row("  head", {grouped(count.head)});
  table.line("");
  const auto row = [&](const std::string& title, int64_t PassCost::*term) {
    const std::string training = grouped(cost.training.*term), prefill = grouped(cost.prefill.*term);
    if (decodes) return table.row(title, {training, prefill, grouped(cost.decode.*term)});
    table.row(title, {training, prefill});
  };
  if (decodes) {
    table.row("multiply-accumulates", {"training", "prefill", "decode step"});
  } else {
    table.row("multiply-accumulates", {"training", "forward"});
  }
  row("  projections", &PassCost::projections);
  row("  scores and values", &PassCost::scores_and_values);
  row("  feed-forward", &PassCost::feed_forward);
  if (decodes) {
    table.row("  total", {grouped(cost.training.total()), grouped(cost.prefill.total()), grouped(cost.decode.total())});
  } else {
    table.row("  total", {grouped(cost.training.total()), grouped(cost.prefill.total())});
  }
  row(config.mask_head ? "  head, if logits are wanted" : "  head", &PassCost::head);
  row("score entries", &PassCost::score_entries);
  row("bytes of activations", &PassCost::activation_bytes);
  table.line("");
  table.row("bytes of weights", {grouped(cost.weight_bytes)});
  table.row("bytes of gradients", {grouped(cost.gradient_bytes)});
  table.row("bytes of Adam's moments", {grouped(cost.optimizer_bytes)});
  if (decodes) table.row("bytes of the cache", {grouped(cost.cache_bytes)});
  if (measured.empty()) return table.text();
  table.line("");
  table.row("measured", {"predicted", "counted", "milliseconds", "billion a second"});
  for (const Measured& one : measured) {
    std::ostringstream time, rate;
    time << std::fixed << std::setprecision(2) << one.seconds * 1e3;
    rate << std::fixed << std::setprecision(1) << static_cast<double>(one.counted) / one.seconds * 1e-9;
    table.row("  " + one.name, {grouped(one.predicted), grouped(one.counted), time.str(), rate.str()});
  }
  if (decodes) table.row("  bytes of the cache", {grouped(cost.cache_bytes), grouped(measured.back().cache_bytes)});
  return table.text();
}

/// Whether a folder holds tensors, or the list of the files that do.
bool holds_weights(const std::string& folder) {
  const std::vector<std::string> files = model_files(folder);
  return std::any_of(files.begin(), files.end(), [](const std::string& file) {
    return file.ends_with(".safetensors") || file.ends_with(".safetensors.index.json");
  });
}

void run(const Call& call) {
  use_target(call);
  const bool is_folder = std::filesystem::is_directory(call.model);
  const ModelConfig config = read_model_config(is_folder ? call.model + "/config.json" : call.model);
  const CostQuery query{.tokens = call.run.count,
                        .memory_tokens = call.run.memory_count,
                        .cache = call.run.cache_count,
                        .dtype = call.run.dtype};
  const ModelCost cost = model_cost(config, query);
  std::vector<Measured> measured;
  if (call.run.measure) {
    const bool weighs = is_folder && holds_weights(call.model);
    measured = measure_cost(config, weighs ? call.model : "", query, call.options.threads);
  }
  print(call.json ? as_json(config, cost, measured) : as_text(config, query, cost, measured));
}

}  // namespace

const Verb kCost = {"cost", "what a model costs: parameters, multiply-accumulates, memory",
                    "Numbers follow from the config alone and are exact: a causal or windowed layer counts the keys\n"
                    "a query sees. Training is forward and backward of the tokens, prefill their forward, a decode\n"
                    "step the last of them alone.\n"
                    "\n"
                    "Example:\n"
                    "  qkv cost gpt2 --tokens 512 --measure",
                    add, run};

}  // namespace qkv::cli
