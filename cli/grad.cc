// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {
namespace {

/// Zeros of the shape and dtype of a tensor, for its gradient; nothing when the problem lacks the tensor.
MutableTensorView add_gradient(const ProblemFile& problem, const std::string& name, Arrays& results) {
  if (!problem.has(name)) return {};
  Tensor& gradient = results["d_" + name];
  gradient = Tensor(problem[name].dtype(), problem[name].shape());
  return gradient.mutable_view();
}

AttentionGradients add_gradients(const ProblemFile& problem, Arrays& results) {
  AttentionGradients gradients;
  gradients.q = add_gradient(problem, "q", results);
  gradients.k = add_gradient(problem, "k", results);
  gradients.v = add_gradient(problem, "v", results);
  gradients.bias = add_gradient(problem, "bias", results);
  gradients.slopes = add_gradient(problem, "slopes", results);
  gradients.table = add_gradient(problem, "table", results);
  gradients.sinks = add_gradient(problem, "sinks", results);
  results["d_scale"] = Tensor(problem.compute_type(), {1});
  gradients.scale = results["d_scale"].mutable_view();
  return gradients;
}

void add(CLI::App& verb, Call& call) { add_problem_options(verb, call, Reads::upstream); }

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, Reads::upstream);
  const AttentionOptions options = bound_options(call, problem);
  const TensorView q = problem["q"], k = problem["k"], v = problem["v"];
  Arrays results;
  results["out"] = Tensor(q.dtype(), problem.out_shape());
  results["lse"] = Tensor(problem.compute_type(), problem.row_shape());
  const AttentionGradients gradients = add_gradients(problem, results);
  const Output output(call.output, problem.paths(), results);

  const Stopwatch watch;
  const AttentionState state = attention_forward(q, k, v, options, results["out"].mutable_view());
  attention_lse(state, results["lse"].mutable_view());
  attention_backward(q, k, v, options, state, {problem["d_out"], problem["d_lse"]}, gradients);
  Summary summary{.verb = "grad", .target = target, .seconds = watch.seconds()};
  if (call.check) summary.comparisons = check_results(problem, options, results);
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kGrad = {"grad", "gradients of every input, from the gradient of out (and of lse)",
                    "Reads d_out [B, H, Tq, Dv], and d_lse [B, H, Tq] if there. Writes out, lse, d_q, d_k, d_v, "
                    "d_scale [1], and d_bias,\n"
                    "d_slopes, d_table, d_sinks for those of the four that the problem has; each in the shape and "
                    "dtype of its tensor.\n"
                    "\n"
                    "Example: a problem with q, k, v and d_out in one file, held against the f64 reference\n"
                    "  qkv grad problem.safetensors --causal top_left --check -o gradients.safetensors",
                    add, run};

}  // namespace qkv::cli
