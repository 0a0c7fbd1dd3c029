// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <functional>
#include <utility>

#include "qkv/kernels/targets.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"

namespace qkv::cli {
namespace {

void add_tensors(CLI::App& verb, Call& call, std::span<const TensorName> names) {
  for (const TensorName& tensor : names) {
    const std::string name = tensor.name;
    add_value(verb, call, "--" + name, "NPY", tensor.help, [&call, name](const std::string& text) {
      call.source.flags[name] = text;
    })->group("Tensors, from .npy files instead of or besides IN");
  }
}

void add_score_options(CLI::App& verb, Call& call) {
  AttentionOptions& options = call.options;
  const char* group = "Scores";
  add_value(verb, call, "--scale", "X", "factor of q . k (default 1/sqrt(D))", [&](const std::string& text) {
    options.scale = parse_number("--scale", text);
  })->group(group);
  add_value(verb, call, "--softcap", "X", "s becomes X tanh(s / X); 0 is off", [&](const std::string& text) {
    options.softcap = parse_number("--softcap", text);
  })->group(group);
  add_value(verb, call, "--buckets", "RULE", "how table counts: bidirectional or causal (T5)",
            [&](const std::string& text) { options.buckets.kind = parse_buckets("--buckets", text); })
      ->group(group);
  add_value(verb, call, "--max-distance", "N", "distance where table saturates (default 128)",
            [&](const std::string& text) { options.buckets.max_distance = parse_integer("--max-distance", text, 1); })
      ->group(group);
  add_value(verb, call, "--dropout", "P", "drop weights with probability P in [0, 1); needs --seed",
            [&](const std::string& text) {
              options.dropout = parse_number("--dropout", text);
              require(options.dropout >= 0 && options.dropout < 1, "--dropout: expected a number in [0, 1), got '",
                      text, "'");
            })
      ->group(group);
  add_value(verb, call, "--seed", "N", "which weights --dropout drops", [&](const std::string& text) {
    options.seed = parse_seed("--seed", text);
  })->group(group);
}

void add_mask_options(CLI::App& verb, Call& call) {
  AttentionOptions& options = call.options;
  const char* group = "Which keys a query sees";
  add_value(verb, call, "--causal", "WHERE", std::string("only keys up to the query: ") + kCausalChoices,
            [&](const std::string& text) { options.causal = parse_causal("--causal", text); })
      ->group(group);
  add_value(verb, call, "--window", "L,R", "L keys to the left of the position and R to the right; - is all",
            [&](const std::string& text) { options.window = parse_window("--window", text); })
      ->group(group);
  add_value(verb, call, "--offset", "N", "key position of query 0, without --causal (default 0)",
            [&](const std::string& text) { options.offset = parse_integer("--offset", text); })
      ->group(group);
  add_value(verb, call, "--block", "BQ,BK", "queries and keys of one block of block_mask",
            [&](const std::string& text) { options.block = parse_block("--block", text); })
      ->group(group);
}

void refuse_together(const Call& call, const char* a, const char* b, const char* why) {
  require(!call.has(a) || !call.has(b), a, " and ", b, " exclude each other: ", why);
}

void require_tensor(const Call& call, const ProblemFile& problem, const char* flag, const char* tensor) {
  require(!call.has(flag) || problem.has(tensor), flag, " needs the tensor ", tensor, ", which the problem lacks");
}

void require_pair(const ProblemFile& problem, const char* a, const char* b) {
  require(!problem.has(a) || problem.has(b), a, " needs the tensor ", b, ", which the problem lacks");
  require(!problem.has(b) || problem.has(a), b, " needs the tensor ", a, ", which the problem lacks");
}

void check_pairs(const Call& call, const ProblemFile& problem) {
  require_tensor(call, problem, "--block", "block_mask");
  require_tensor(call, problem, "--buckets", "table");
  require_tensor(call, problem, "--max-distance", "table");
  require(!problem.has("block_mask") || call.has("--block"), "block_mask needs --block BQ,BK, the sides of its blocks");
  require(!problem.has("table") || call.has("--buckets"), "table needs --buckets bidirectional or --buckets causal");
  const Causal::Kind causal = call.options.causal.kind();
  if (causal == Causal::Kind::offsets) require_tensor(call, problem, "--causal", "offsets");
  require(!problem.has("offsets") || causal == Causal::Kind::none || causal == Causal::Kind::offsets,
          "offsets: a tensor of this name goes with --causal offsets or with no --causal");
  require(!problem.has("offsets") || !call.has("--offset"),
          "--offset and the tensor offsets exclude each other: both say where queries stand");
  require_pair(problem, "query_segment", "key_segment");
  require_pair(problem, "query_starts", "key_starts");
}

}  // namespace

CLI::Option* add_value(CLI::App& verb, Call& call, const std::string& flag, const std::string& value,
                       const std::string& help, std::function<void(const std::string&)> set) {
  const std::string name = flag.substr(flag.rfind("--"));
  const auto callback = [&call, name, set = std::move(set)](const std::string& text) {
    call.given.insert(name);
    set(text);
  };
  return verb.add_option_function<std::string>(flag, callback, help)->type_name(value);
}

CLI::Option* add_switch(CLI::App& verb, bool& on, const std::string& flag, const std::string& help) {
  return verb.add_flag(flag, on, help)->disable_flag_override();
}

void add_model_options(CLI::App& verb, Call& call) {
  add_value(verb, call, "--model", "DIR", "a Hugging Face folder", [&](const std::string& text) {
    call.model = text;
  })->required();
  add_machine_options(verb, call);
  add_value(verb, call, "--dtype", "TYPE", "compute in f32 or bf16 (default f32, whatever is stored)",
            [&](const std::string& text) { call.run.dtype = parse_model_dtype("--dtype", text); })
      ->group("How to run");
}

void add_idle_dtype(CLI::App& verb, Call& call) {
  add_value(verb, call, "--dtype", "TYPE", "f32 or bf16; of no effect here, as for every verb with a model",
            [](const std::string& text) { parse_model_dtype("--dtype", text); })
      ->group("How to run");
}

void add_machine_options(CLI::App& verb, Call& call) {
  const char* group = "How to run";
  add_value(verb, call, "--threads", "N", "1 to 4096 (default: all CPUs this process may use)",
            [&](const std::string& text) {
              call.options.threads = static_cast<int>(parse_integer("--threads", text, 1, 4096));
            })
      ->group(group);
  add_value(verb, call, "--target", "NAME", "instruction set, one of `qkv info` (default: the best)",
            [&](const std::string& text) { call.target = text; })
      ->group(group);
  add_switch(verb, call.json, "--json", "one JSON object on standard output instead of text")->group(group);
}

void add_problem_options(CLI::App& verb, Call& call, Reads reads) {
  verb.add_option("IN", call.source.file, "the problem: a .safetensors file with q, k, v and any tensor named below")
      ->type_name("");
  add_value(verb, call, "-o,--output", "OUT", "where results go: NAME.safetensors, or a folder of .npy files",
            [&](const std::string& text) { call.output = text; })
      ->required()
      ->group("Result");
  add_mask_options(verb, call);
  add_score_options(verb, call);
  add_machine_options(verb, call);
  add_value(verb, call, "--dtype", "TYPE", "convert first, to f64, f32, bf16 or f16", [&](const std::string& text) {
    call.dtype = parse_dtype("--dtype", text);
  })->group("How to run");
  add_switch(verb, call.check, "--check",
             "hold the result against the f64 reference (slow); exit 1 if it is too far off")
      ->group("How to run");
  add_tensors(verb, call, problem_tensors());
  add_tensors(verb, call, further_tensors(reads));
}

void check_call(const Call& call) {
  require(!call.source.file.empty() || !call.source.flags.empty(),
          "no problem given: name a .safetensors file, or give --q, --k and --v");
  refuse_together(call, "--causal", "--offset", "a causal mask says itself where queries stand, as in --causal N");
  require(!call.has("--seed") || call.has("--dropout"), "--seed needs --dropout P, which was not given");
  require(call.options.dropout == 0 || call.has("--seed"), "--dropout needs --seed N, which was not given");
}

AttentionOptions bound_options(const Call& call, const ProblemFile& problem) {
  check_pairs(call, problem);
  AttentionOptions options = call.options;
  options.offsets = problem["offsets"];
  options.bias = problem["bias"];
  options.slopes = problem["slopes"];
  options.table = problem["table"];
  options.sinks = problem["sinks"];
  options.mask = problem["mask"];
  options.key_lengths = problem["key_lengths"];
  options.query_lengths = problem["query_lengths"];
  options.query_segment = problem["query_segment"];
  options.key_segment = problem["key_segment"];
  options.block_mask = problem["block_mask"];
  options.query_starts = problem["query_starts"];
  options.key_starts = problem["key_starts"];
  return options;
}

AttentionTangents tangents_of(const ProblemFile& problem) {
  return {.q = problem["t_q"],
          .k = problem["t_k"],
          .v = problem["t_v"],
          .bias = problem["t_bias"],
          .slopes = problem["t_slopes"],
          .table = problem["t_table"],
          .sinks = problem["t_sinks"],
          .scale = problem["t_scale"]};
}

std::string use_target(const Call& call) {
  if (call.has("--target")) choose_target(call.target);
  return chosen_target();
}

int thread_count(const Call& call) { return call.options.threads > 0 ? call.options.threads : available_threads(); }

}  // namespace qkv::cli
