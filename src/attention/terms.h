// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/mask.h"
#include "attention/problem.h"
#include "kernels/attention_kernels.h"

namespace qkv {

/// A rectangle of pairs: rows [first_row, first_row + rows) of one head against keys [first_key, first_key + keys).
struct TileRange {
  int64_t b = 0;
  int64_t h = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_key = 0;
  int64_t keys = 0;
};

/// True when the problem adds something to scores: the kernels then need final scores (see attention_scores-inl.h).
inline bool has_additive_terms(const Problem& problem) { return problem.bias || problem.slopes || problem.table; }
inline bool needs_finished_scores(const Problem& problem) {
  // A scale below f32's range is 0 there.
  const bool vanishes = problem.is_f64() ? problem.scale == 0 : static_cast<float>(problem.scale) == 0;
  return has_additive_terms(problem) || problem.softcap > 0 || vanishes;
}
/// Masks whose shape only their tensors know.
inline bool has_tensor_masks(const Problem& problem) {
  return problem.mask || problem.query_segment || problem.block_mask;
}

/// What a tile turned out to be.
enum class Cover : uint8_t {
  empty,    ///< no pair is visible: the tile is skipped
  full,     ///< every pair of [begin, end) is visible and nothing is added
  partial,  ///< the terms say
};

/// The columns of a tile that matter, counted from its first key. `begin` is a multiple of the panel width. Columns
/// [shared_begin, shared_end) of a partial tile, whole vectors, are visible to every row and have no term.
struct TileCover {
  Cover cover = Cover::empty;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t shared_begin = 0;
  int64_t shared_end = 0;
};

/// True on the edge of a causal or window mask, where fewer rows at a time leave fewer hidden pairs to compute.
inline bool is_edge(const Problem& problem, const TileCover& cover) {
  return cover.cover == Cover::partial && !has_additive_terms(problem) && !has_tensor_masks(problem);
}

/// relative_bucket of the distances that occur, looked up.
class BucketMap {
 public:
  explicit BucketMap(const Problem& problem);
  int64_t operator()(int64_t distance) const;

 private:
  const Problem& problem_;
  int64_t reach_ = 0;
  std::vector<int64_t> buckets_;
};

template <class T>
struct TermsScratch {
  T* terms = nullptr;  ///< [rows, stride]
  int64_t stride = 0;
  T* distances = nullptr;  ///< [rows + keys]
};

/// Decides what a tile is and, for a partial one, builds the terms: bias + ALiBi + relative table where a pair is
/// visible, -inf where any mask or a bias of -inf hides it, on [begin, end rounded up to a panel) but for the shared
/// columns.
template <class T>
TileCover plan_tile(const Problem& problem, const BucketMap& buckets, const TileRange& tile,
                    const AttentionKernels<T>& kernels, const TermsScratch<T>& scratch);

}  // namespace qkv
