// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"
#include "attention/terms.h"
#include "kernels/attention_kernels.h"
#include "qkv/support/random.h"

namespace qkv {

/// r_j of one row: 1/(1-p) for kept keys, 0 for dropped ones; 1 without dropout.
class RowDropout {
 public:
  RowDropout(const Problem& problem, int64_t b, int64_t h, int64_t i)
      : key_(dropout_row_key(problem.seed, b, h, i + problem.sequence(b).offset)),
        threshold_(dropout_threshold(problem.dropout)),
        keep_(1.0 / (1.0 - problem.dropout)),
        on_(problem.dropout > 0) {}
  double factor(int64_t j) const {
    if (!on_) return 1.0;
    return dropout_bits(key_, j) >= threshold_ ? keep_ : 0.0;
  }

 private:
  uint64_t key_;
  uint32_t threshold_;
  double keep_;
  bool on_;
};

/// Makes the decisions of tiles for the kernels. One per worker.
template <class T>
class TileDecisions {
 public:
  /// For tiles of at most `rows` rows and `keys` keys.
  TileDecisions(const Problem& problem, const AttentionKernels<T>& kernels, int64_t rows, int64_t keys)
      : problem_(problem),
        kernels_(kernels),
        threshold_(dropout_threshold(problem.dropout)),
        words_(ceil_divide(keys, kWordBits)),
        kept_(problem.dropout > 0 ? rows * words_ : 0) {}

  /// Of the columns that matter. Valid until the next tile with the same rows of scratch, used from `scratch_row` on.
  TileDropout<T> decide(const TileRange& tile, KeyRange columns, int64_t scratch_row = 0) {
    if (problem_.dropout <= 0) return {};
    const int64_t first = columns.begin / kWordBits;
    const int64_t from = first * kWordBits;
    uint64_t* kept = kept_.get() + scratch_row * words_;
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t position = tile.first_row + r + problem_.sequence(tile.b).offset;
      kernels_.kept_bits(dropout_row_key(problem_.seed, tile.b, tile.h, position), tile.first_key + from, threshold_,
                         columns.end - from, kept + r * words_ + first);
    }
    return {kept, words_, static_cast<T>(1.0 / (1.0 - problem_.dropout))};
  }

 private:
  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  uint32_t threshold_;
  int64_t words_;
  AlignedArray<uint64_t> kept_;  ///< [rows, words]
};

}  // namespace qkv
