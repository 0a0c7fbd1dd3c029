// SPDX-License-Identifier: Apache-2.0
#include "attention/probe_check.h"

#include <algorithm>

#include "attention/check_view.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

void check_range(Range range, const char* what, int64_t count) {
  require(range.begin >= 0 && range.begin <= range.end && range.end <= count, "attention: the tile's ", what,
          " must be a range within 0:", count, ", got ", range.begin, ":", range.end);
}

}  // namespace

Operand check_weights(const Problem& problem, Range queries, Range keys, const TensorView& weights, int q_rank) {
  require(!problem.packed,
          "attention: weights are tiles of queries by keys, which packed sequences do not have in "
          "common; statistics and edges work with query_starts");
  check_range(queries, "queries", problem.Tq);
  check_range(keys, "keys", problem.Tk);
  Dims shape;
  if (q_rank >= 4) shape.push_back(problem.B);
  if (q_rank >= 3) shape.push_back(problem.H);
  shape.push_back(queries.end - queries.begin);
  shape.push_back(keys.end - keys.begin);
  check_shape(weights, "weights", shape);
  check_dtype(weights, "weights", problem.is_f64() ? DType::f64 : DType::f32);
  return make_operand(weights);
}

void check_edges(const Problem& problem, int64_t query, int64_t count) {
  int64_t longest = 0;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.Tq);
  if (problem.B == 0) longest = problem.Tq;
  require(query >= 0 && query < longest, "attention: the edges' query must be one of the ", longest,
          problem.packed ? " of the longest sequence" : " in q", ", counted from 0, got ", query);
  require(count >= 0, "attention: the edges' number of keys must not be negative, got ", count);
  checked_product({problem.B, problem.H, count, std::max<int64_t>(problem.Dv, 1)}, "B x H x count x Dv of the edges");
}

}  // namespace qkv
