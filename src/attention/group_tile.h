// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/terms.h"

namespace qkv {

/// Plans tiles whose rows are those of several query heads on one key/value head: head after head, each with the same
/// queries. One per worker.
template <class T>
class GroupPlanner {
 public:
  /// For tiles of at most `rows` rows in all and `keys` keys.
  GroupPlanner(const Problem& problem, const BucketMap& buckets, const AttentionKernels<T>& kernels, int64_t rows,
               int64_t keys);

  /// `tile` names the first of `heads` heads and the rows of one. As TilePlanner::plan; valid until the next.
  TileCover<T> plan(const TileRange& tile, int64_t heads);

 private:
  void keep_bits(const TileCover<T>& cover, int64_t row, int64_t rows);
  void keep_terms(const TileCover<T>& cover, int64_t row, int64_t rows);

  const Problem& problem_;
  TilePlanner<T> planner_;
  int64_t words_;
  AlignedArray<uint64_t> bits_;  ///< [rows, words]
  AlignedArray<T> terms_;        ///< [rows, 64 words]
};

}  // namespace qkv
