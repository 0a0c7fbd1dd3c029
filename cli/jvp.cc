// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) { add_problem_options(verb, call, Reads::tangents); }

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, Reads::tangents);
  const AttentionOptions options = bound_options(call, problem);
  const TensorView q = problem["q"], k = problem["k"], v = problem["v"];
  const AttentionTangents tangents = tangents_of(problem);
  Arrays results;
  for (const char* name : {"out", "t_out"}) results[name] = Tensor(q.dtype(), problem.out_shape());
  for (const char* name : {"lse", "t_lse"}) results[name] = Tensor(problem.compute_type(), problem.row_shape());
  const Output output(call.output, problem.paths(), results);

  const Stopwatch watch;
  const AttentionState state = attention_forward(q, k, v, options, results["out"].mutable_view());
  attention_lse(state, results["lse"].mutable_view());
  attention_jvp(q, k, v, options, state, tangents, results["t_out"].mutable_view(), results["t_lse"].mutable_view());
  Summary summary{.verb = "jvp", .target = target, .seconds = watch.seconds()};
  if (call.check) {
    summary.comparisons = check_results(problem, options, results);
    const auto moved = attention_jvp_accuracy(q, k, v, options, tangents, {results["t_out"], results["t_lse"]});
    summary.comparisons.insert(summary.comparisons.end(), moved.begin(), moved.end());
  }
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kJvp = {"jvp", "forward mode: how out and lse move when the inputs do",
                   "Reads any of t_q, t_k, t_v, t_bias, t_slopes, t_table, t_sinks, each in the shape and dtype of its "
                   "tensor, and\n"
                   "t_scale [1]; what is absent does not move. Writes out, lse, t_out [B, H, Tq, Dv] and t_lse [B, H, "
                   "Tq].\n"
                   "\n"
                   "Example: a problem with q, k, v and t_q in one file, held against the f64 reference\n"
                   "  qkv jvp problem.safetensors --causal top_left --check -o tangents.safetensors",
                   add, run};

}  // namespace qkv::cli
