// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/check_derivatives.h"
#include "attention/mask_bits.h"
#include "attention/relative_terms.h"
#include "support/aligned.h"

namespace qkv {

/// The tangents of a tile's additive terms, t_bias - t_slope |distance| + t_table, of any value where pairs are hidden.
/// One per worker.
template <class T>
class TangentTerms {
 public:
  /// For tiles of at most `rows` rows and `keys` keys.
  TangentTerms(const Problem& problem, const TangentOperands& tangents, const BucketMap& buckets,
               const AttentionKernels<T>& kernels, int64_t rows, int64_t keys);
  /// True when some term moves.
  bool any() const { return tangents_.bias || relative(); }
  /// Makes the columns [begin, end) of a tile current.
  void set(const TileRange& tile, int64_t begin, int64_t end);
  const T* terms() const { return current_; }  ///< null: none moves
  int64_t stride() const { return current_stride_; }

 private:
  bool relative() const { return tangents_.slopes || tangents_.table; }
  void fill_distances(const TileRange& tile);

  const Problem& problem_;
  const TangentOperands& tangents_;
  const BucketMap& buckets_;
  const AttentionKernels<T>& kernels_;
  int64_t stride_;
  AlignedArray<T> terms_;      ///< [rows + 1, stride]
  AlignedArray<T> distances_;  ///< row r, column c finds its relative term at distances_[c + rows - 1 - r]
  const T* current_ = nullptr;
  int64_t current_stride_ = 0;
};

}  // namespace qkv
