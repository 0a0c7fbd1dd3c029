// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/check.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

/// All weights [B, H, Tq, Tk], a strip of queries at a time, each straight into its place.
void fill_weights(const ProblemFile& problem, const AttentionOptions& options, const MutableTensorView& weights) {
  constexpr int64_t kStrip = 1024;
  const int axis = weights.rank() - 2;
  const int64_t Tq = weights.size(axis);
  const int64_t Tk = weights.size(axis + 1);
  // One strip even without queries, so that the library checks the call.
  for (int64_t begin = 0; begin == 0 || begin < Tq; begin += kStrip) {
    const int64_t end = std::min(begin + kStrip, Tq);
    Dims shape = weights.shape();
    shape[axis] = end - begin;
    const MutableTensorView strip(weights.dtype(), weights.at(begin * weights.stride(axis)), shape, weights.strides());
    attention_weights(problem["q"], problem["k"], problem["v"], options, {begin, end}, {0, Tk}, strip);
  }
}

void add(CLI::App& verb, Call& call) {
  add_problem_options(verb, call, Reads::nothing_else);
  add_switch(verb, call.weights, "--weights",
             "also write weights [B, H, Tq, Tk], before dropout: Tq x Tk numbers per head")
      ->group("Result");
}

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, Reads::nothing_else);
  const AttentionOptions options = bound_options(call, problem);
  require(!call.weights || !problem.packed(),
          "--weights and query_starts exclude each other: packed sequences have no "
          "common shape of weights; `qkv probe` gives statistics of theirs");
  Arrays results;
  results["out"] = Tensor(problem["q"].dtype(), problem.out_shape());
  results["lse"] = Tensor(problem.compute_type(), problem.row_shape());
  if (call.weights) results["weights"] = Tensor(problem.compute_type(), problem.weights_shape());
  const Output output(call.output, problem.paths(), results);

  const Stopwatch watch;
  attention_forward(problem["q"], problem["k"], problem["v"], options, results["out"].mutable_view(),
                    results["lse"].mutable_view());
  if (call.weights) fill_weights(problem, options, results["weights"].mutable_view());
  Summary summary{.verb = "attend", .target = target, .seconds = watch.seconds()};
  if (call.check) summary.comparisons = check_results(problem, options, results);
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kAttend = {"attend", "out = softmax(scale q k^T + ...) v, and its lse",
                      "Writes out [B, H, Tq, Dv] and lse [B, H, Tq], and weights with --weights. An OUT that ends in "
                      ".npy gets out alone.\n"
                      "\n"
                      "Example: causal attention over 256 keys, from NumPy arrays to NumPy arrays\n"
                      "  qkv attend --q q.npy --k k.npy --v v.npy --causal bottom_right --window 255,0 -o out.npy",
                      add, run};

}  // namespace qkv::cli
