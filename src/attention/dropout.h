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

/// The decisions of a tile for the kernels; `row_keys` is scratch for its rows.
template <class T>
TileDropout<T> tile_dropout(const Problem& problem, const TileRange& tile, uint64_t* row_keys) {
  if (problem.dropout <= 0) return {};
  const int64_t offset = problem.sequence(tile.b).offset;
  for (int64_t r = 0; r < tile.rows; ++r) {
    row_keys[r] = dropout_row_key(problem.seed, tile.b, tile.h, tile.first_row + r + offset);
  }
  return {row_keys, dropout_threshold(problem.dropout), static_cast<T>(1.0 / (1.0 - problem.dropout)), tile.first_key};
}

}  // namespace qkv
