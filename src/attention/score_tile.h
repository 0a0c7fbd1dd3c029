// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attention/pairs.h"
#include "attention/terms.h"

namespace qkv {

/// Where the scores of a tile go: [rows, stride].
template <class T>
struct ScoreScratch {
  T* scores = nullptr;
  int64_t stride = 0;
};

/// The scores of `rows` queries, at `q` [rows, D in E] (negated under a negative scale), on a cover from a planner.
template <class T, class E>
ScoreTile<T, E> score_tile(const Problem& problem, const TileCover<T>& cover, const E* q, int64_t rows, const E* keys,
                           const ScoreScratch<T>& scratch) {
  const int64_t width = width_in<T, E>(problem.D);
  ScoreTile<T, E> tile{.q = q,
                       .q_stride = width,
                       .keys = keys,
                       .rows = rows,
                       .D = width,
                       .scale = static_cast<T>(std::fabs(problem.scale)),
                       .softcap = static_cast<T>(problem.softcap),
                       .finished = needs_finished_scores(problem),
                       .scores = scratch.scores,
                       .scores_stride = scratch.stride};
  cover.apply(tile);
  return tile;
}

}  // namespace qkv
