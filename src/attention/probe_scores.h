// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/key_cache.h"
#include "attention/plan.h"
#include "attention/terms.h"
#include "attention/tiling.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// Sums over keys run in this many strands, by key modulo their number: whoever cuts rows or keys into tiles in
/// whatever way adds the same numbers in the same order.
inline constexpr int64_t kStrands = 8;

/// Rows of one probe item: two groups of rows that share a pass over a key block.
inline constexpr int64_t kProbeRows = 2 * kForwardRows;

/// Final scores of some rows against one key block. Hidden pairs are -inf, visible ones never.
template <class T>
struct ScoreBlock {
  int64_t rows = 0;
  int64_t first_key = 0;
  int64_t begin = 0;  ///< columns that may be visible, counted from first_key: whole strands;
  int64_t end = 0;    ///< equal when none is
  T* scores = nullptr;
  int64_t stride = 0;

  bool empty() const { return begin == end; }
  T* row(int64_t r) const { return scores + r * stride; }
};

/// Recomputes scores tile by tile, for one worker.
template <class T>
class ScoreTiles {
 public:
  /// Items of at most `item_rows` rows against key blocks of `block_keys` keys, a power of two from 128.
  ScoreTiles(const Problem& problem, const BucketMap& buckets, int64_t item_rows, int64_t block_keys);

  /// The rows that tiles are taken from next.
  void load(const RowItem& item);
  /// Rows [r, r + kForwardRows) of the item, or what there is of them, against key block `index`. Valid until the next.
  ScoreBlock<T> tile(int64_t r, int64_t index);

  int64_t block_keys() const { return block_keys_; }
  const AttentionKernels<T>& kernels() const { return kernels_; }

 private:
  void pack_queries();

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  TilePlanner<T> planner_;
  KeyCache<T> cache_;
  RowItem item_;
  bool packed_ = false;  ///< the queries of item_ are in q_
  AlignedArray<T> q_, scores_;
};

}  // namespace qkv
