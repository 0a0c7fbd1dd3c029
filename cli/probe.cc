// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cli/check.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

/// weights [B, H, q1 - q0, k1 - k0] in q's rank.
Dims tile_shape(const ProblemFile& problem, const Tile& tile) {
  Dims shape = problem.weights_shape();
  const int axis = shape.rank() - 2;
  require(!problem.packed(),
          "--tile and query_starts exclude each other: packed sequences have no common tile of weights");
  require(tile.queries.end <= shape[axis], "--tile: expected queries within 0:", shape[axis], ", got ",
          tile.queries.begin, ":", tile.queries.end);
  require(tile.keys.end <= shape[axis + 1], "--tile: expected keys within 0:", shape[axis + 1], ", got ",
          tile.keys.begin, ":", tile.keys.end);
  shape[axis] = tile.queries.end - tile.queries.begin;
  shape[axis + 1] = tile.keys.end - tile.keys.begin;
  return shape;
}

AttentionStatistics add_statistics(const ProblemFile& problem, Arrays& results) {
  const auto make = [&](const char* name, DType dtype, const Dims& shape) {
    results[name] = Tensor(dtype, shape);
    return results[name].mutable_view();
  };
  AttentionStatistics statistics;
  statistics.row_entropy = make("row_entropy", problem.compute_type(), problem.row_shape());
  statistics.row_max = make("row_max", problem.compute_type(), problem.row_shape());
  statistics.row_top = make("row_top", DType::i64, problem.row_shape());
  statistics.key_mass = make("key_mass", problem.compute_type(), problem.key_shape());
  return statistics;
}

void add(CLI::App& verb, Call& call) {
  add_problem_options(verb, call, Reads::nothing_else);
  add_value(verb, call, "--tile", "Q0:Q1,K0:K1", "also write this tile of the weights, ends excluded",
            [&](const std::string& text) { call.tile = parse_tile("--tile", text); })
      ->group("Result");
  add_value(verb, call, "--edges", "I:K", "also write what removing each of the K heaviest keys of query I would do",
            [&](const std::string& text) { call.edges = parse_edges("--edges", text); })
      ->group("Result");
}

void run(const Call& call) {
  check_call(call);
  const std::string target = use_target(call);
  const ProblemFile problem(call.source, call.dtype, Reads::nothing_else);
  const AttentionOptions options = bound_options(call, problem);
  const TensorView q = problem["q"], k = problem["k"], v = problem["v"];
  Arrays results;
  const AttentionStatistics statistics = add_statistics(problem, results);
  if (call.tile) results["weights"] = Tensor(problem.compute_type(), tile_shape(problem, *call.tile));

  const Stopwatch watch;
  if (call.edges) {
    AttentionEdges edges = attention_edges(q, k, v, options, call.edges->query, call.edges->count);
    results["edge_keys"] = std::move(edges.keys);
    results["edge_zero_value"] = std::move(edges.zero_value);
    results["edge_hide_key"] = std::move(edges.hide_key);
  }
  const Output output(call.output, problem.paths(), results);
  attention_statistics(q, k, v, options, statistics);
  if (call.tile) {
    attention_weights(q, k, v, options, call.tile->queries, call.tile->keys, results["weights"].mutable_view());
  }
  Summary summary{.verb = "probe", .target = target, .seconds = watch.seconds()};
  if (call.check) summary.comparisons = check_probes(problem, options, results, call.tile);
  finish(call, problem, results, output, summary);
}

}  // namespace

const Verb kProbe = {
    "probe", "what the weights look like, without ever storing Tq x Tk of them",
    "Writes, per query, row_entropy (nats), row_max (the largest weight) and row_top (its key, -1 for an empty row), "
    "and\n"
    "per key key_mass (its weights, summed over queries). With --tile also weights. With --edges also edge_keys "
    "(heaviest\n"
    "first, -1 where the row sees fewer), edge_zero_value and edge_hide_key: the change of out when the value of that "
    "key\n"
    "becomes zero, and when the key is hidden.\n"
    "\n"
    "Example: the five keys that query 12 reads most, and the weights of the first 64 queries and keys\n"
    "  qkv probe problem.safetensors --edges 12:5 --tile 0:64,0:64 -o probes",
    add, run};

}  // namespace qkv::cli
