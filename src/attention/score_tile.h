// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attention/terms.h"

namespace qkv {

/// Where the scores of a tile go: [rows, stride].
template <class T>
struct ScoreScratch {
  T* scores = nullptr;
  int64_t stride = 0;
};

/// The scores of `rows` queries, at `q` [rows, D] (negated under a negative scale), on a cover that a planner gave.
template <class T>
ScoreTile<T> score_tile(const Problem& problem, const TileCover<T>& cover, const T* q, int64_t rows, const T* keys,
                        const ScoreScratch<T>& scratch) {
  ScoreTile<T> tile{.q = q,
                    .q_stride = problem.D,
                    .keys = keys,
                    .rows = rows,
                    .D = problem.D,
                    .scale = static_cast<T>(std::fabs(problem.scale)),
                    .softcap = static_cast<T>(problem.softcap),
                    .finished = needs_finished_scores(problem),
                    .scores = scratch.scores,
                    .scores_stride = scratch.stride};
  cover.apply(tile);
  return tile;
}

}  // namespace qkv
