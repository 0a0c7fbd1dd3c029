// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) { add_problem_options(verb, call, Reads::cotangents); }

AttentionSecondGradients add_gradients(const ProblemFile& problem, Arrays& results) {
  const auto like = [&](const char* name, const TensorView& tensor) {
    if (!tensor) return MutableTensorView();
    results[name] = Tensor(tensor.dtype(), tensor.shape());
    return results[name].mutable_view();
  };
  results["g_d_out"] = Tensor(problem["q"].dtype(), problem.out_shape());
  return {.q = like("g_q", problem["q"]),
          .k = like("g_k", problem["k"]),
          .v = like("g_v", problem["v"]),
          .bias = like("g_bias", problem["bias"]),
          .d_out = results["g_d_out"].mutable_view()};
}

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, Reads::cotangents);
  const AttentionOptions options = bound_options(call, problem);
  const TensorView q = problem["q"], k = problem["k"], v = problem["v"];
  const AttentionCotangents cotangents{problem["c_q"], problem["c_k"], problem["c_v"], problem["c_bias"]};
  Arrays results;
  const AttentionSecondGradients gradients = add_gradients(problem, results);
  const Output output(call.output, problem.paths(), results);

  const Stopwatch watch;
  Tensor out(q.dtype(), problem.out_shape());
  const AttentionState state = attention_forward(q, k, v, options, out.mutable_view());
  attention_second_order(q, k, v, options, state, problem["d_out"], cotangents, gradients);
  Summary summary{.verb = "second", .target = target, .seconds = watch.seconds()};
  if (call.check) {
    summary.comparisons =
        attention_second_order_accuracy(q, k, v, options, problem["d_out"], cotangents,
                                        {results["g_q"], results["g_k"], results["g_v"],
                                         problem.has("bias") ? results["g_bias"] : Tensor(), results["g_d_out"]});
  }
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kSecond = {
    "second", "second derivatives: the gradients of what grad computes",
    "Reads d_out [B, H, Tq, Dv] and any of c_q, c_k, c_v, c_bias, cotangents of d_q, d_k, d_v and "
    "d_bias in the shape\n"
    "and dtype of their tensors. Writes g_q, g_k, g_v, g_d_out, and g_bias where there is a bias: the "
    "gradients of\n"
    "<c_q, d_q> + <c_k, d_k> + <c_v, d_v> + <c_bias, d_bias>, with slopes, table, sinks and scale held "
    "constant.\n"
    "\n"
    "Example: a Hessian-vector product of <d_out, out>, the vector in c_q, c_k and c_v\n"
    "  qkv second problem.safetensors --causal top_left --check -o hessian.safetensors",
    add, run};

}  // namespace qkv::cli
