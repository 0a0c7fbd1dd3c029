// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/mask_bits.h"
#include "attention/problem.h"
#include "attention/relative_terms.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// True when the problem adds something to scores: the kernels then need final scores (see attention_scores-inl.h).
inline bool has_additive_terms(const Problem& problem) { return problem.bias || problem.slopes || problem.table; }
inline bool needs_finished_scores(const Problem& problem) {
  // A scale below f32's range is 0 there.
  const bool vanishes = problem.is_f64() ? problem.scale == 0 : static_cast<float>(problem.scale) == 0;
  return has_additive_terms(problem) || problem.softcap > 0 || vanishes;
}

/// What a tile turned out to be: the columns that matter, counted from its first key, and what is added and hidden
/// there. What the pointers show stays until the planner's next tile with the same scratch rows, terms until its next.
template <class T>
struct TileCover {
  int64_t rows = 0;   ///< of the tile that this describes, its first ones
  int64_t begin = 0;  ///< a multiple of the panel width
  int64_t end = 0;    ///< equal: no pair is visible, the tile is skipped
  bool edge = false;  ///< on the edge of a causal or window mask, where fewer rows leave fewer hidden pairs to compute
  const T* terms = nullptr;  ///< these and the rest as in ScoreTile
  int64_t terms_stride = 0;
  const uint64_t* visible = nullptr;
  int64_t visible_stride = 0;
  int64_t shared_begin = 0;
  int64_t shared_end = 0;
  uint64_t blank_words = 0;

  bool empty() const { return begin >= end; }
  template <class E>
  void apply(ScoreTile<T, E>& tile) const {
    tile.begin = begin;
    tile.end = end;
    tile.terms = terms;
    tile.terms_stride = terms_stride;
    tile.visible = visible;
    tile.visible_stride = visible_stride;
    tile.shared_begin = shared_begin;
    tile.shared_end = shared_end;
    tile.blank_words = blank_words;
  }
};

/// Decides what tiles are and gathers their terms: bias + ALiBi + relative table. One per worker.
template <class T>
class TilePlanner {
 public:
  /// For tiles of at most `rows` rows and `keys` keys.
  TilePlanner(const Problem& problem, const BucketMap& buckets, const AttentionKernels<T>& kernels, int64_t rows,
              int64_t keys);

  /// `scratch_row`: which rows of the scratch to use from, for parts of a tile that are kept side by side.
  TileCover<T> plan(const TileRange& tile, int64_t scratch_row = 0);
  /// The same, of fewer rows, the tile's first ones, where the others see other columns: they are a tile of their own.
  TileCover<T> plan_leading(const TileRange& tile, int64_t scratch_row);

 private:
  TileCover<T> plan_rows(const TileRange& tile, int64_t scratch_row, bool whole);
  TileCover<T> cover_of_ranges(const TileRange& tile) const;
  void set_terms(TileRange tile, TileCover<T>& cover, int64_t scratch_row);
  void set_bias(const TileRange& tile, TileCover<T>& cover, int64_t scratch_row);
  void refine(TileCover<T>& cover, const uint64_t* bits) const;

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t stride_;  ///< of built terms
  MaskBits<T> masks_;
  RelativeTerms<T> relative_;
  AlignedArray<T> terms_;      ///< [rows + 1, stride]
  AlignedArray<T> distances_;  ///< [rows + stride]
};

}  // namespace qkv
