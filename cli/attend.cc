// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) { add_problem_options(verb, call, false); }

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, false);
  const AttentionOptions options = bound_options(call, problem);
  Arrays results;
  results["out"] = Tensor(problem["q"].dtype(), problem.out_shape());
  results["lse"] = Tensor(problem.compute_type(), problem.row_shape());
  const Output output(call.output, problem.paths(), results);

  const Stopwatch watch;
  attention_forward(problem["q"], problem["k"], problem["v"], options, results["out"].mutable_view(),
                    results["lse"].mutable_view());
  Summary summary{.verb = "attend", .target = target, .seconds = watch.seconds()};
  if (call.check) summary.comparisons = check_results(problem, options, results);
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kAttend = {"attend", "out = softmax(scale q k^T + ...) v, and its lse",
                      "Writes out [B, H, Tq, Dv] and lse [B, H, Tq]. An OUT that ends in "
                      ".npy gets out alone.\n"
                      "\n"
                      "Example: causal attention over 256 keys, from NumPy arrays to NumPy arrays\n"
                      "  qkv attend --q q.npy --k k.npy --v v.npy --causal bottom_right --window 255,0 -o out.npy",
                      add, run};

}  // namespace qkv::cli
