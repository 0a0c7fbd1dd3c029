// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include "attention/check.h"
#include "attention/mask.h"

namespace qkv::bench {
namespace {

/// Visible pairs of one head of one batch entry.
int64_t visible_pairs(const Problem& problem, int64_t b, int64_t h) {
  const Sequence& sequence = problem.sequence(b);
  const bool by_pair = problem.mask || problem.query_segment || problem.block_mask;
  int64_t pairs = 0;
  for (int64_t i = 0; i < sequence.Tq; ++i) {
    const KeyRange range = visible_range(problem, sequence, i);
    if (!by_pair) pairs += range.end - range.begin;
    for (int64_t j = range.begin; by_pair && j < range.end; ++j) pairs += mask_shows(problem, b, h, i, j) ? 1 : 0;
  }
  return pairs;
}

}  // namespace

Work work_of(const Inputs& inputs) {
  const Problem problem = check_problem(inputs.q.view, inputs.k.view, inputs.v.view, inputs.options);
  // Heads differ only through a mask that has an axis for them.
  const bool heads_differ = problem.mask.stride[1] != 0 || problem.block_mask.stride[1] != 0;
  Work work;
  for (int64_t b = 0; b < problem.B; ++b) {
    if (!heads_differ && problem.H > 0) work.pairs += problem.H * visible_pairs(problem, b, 0);
    for (int64_t h = 0; heads_differ && h < problem.H; ++h) work.pairs += visible_pairs(problem, b, h);
  }
  const double width = static_cast<double>(problem.D + problem.Dv);
  work.forward_operations = 2.0 * static_cast<double>(work.pairs) * width;
  const TensorView &k = inputs.k.view, &v = inputs.v.view;
  work.backward_operations = 2.5 * work.forward_operations;
  // Products of docs/derivatives.md: three of width D and two of Dv; seven and five.
  const double D = static_cast<double>(problem.D), Dv = static_cast<double>(problem.Dv);
  work.jvp_operations = 2.0 * static_cast<double>(work.pairs) * (3 * D + 2 * Dv);
  work.second_operations = 2.0 * static_cast<double>(work.pairs) * (7 * D + 5 * Dv);
  work.few_rows = problem.Tq;
  work.read_bytes = static_cast<double>(k.elements() * size_of(k.dtype()) + v.elements() * size_of(v.dtype()));
  return work;
}

}  // namespace qkv::bench
