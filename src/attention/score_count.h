// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "attention/mask_bits.h"
#include "kernels/attention_kernels.h"
#include "support/work_counter.h"

namespace qkv {

/// Pairs of a tile that are visible.
template <class T, class E>
int64_t visible_pairs(const ScoreTile<T, E>& tile) {
  if (tile.visible == nullptr) return tile.rows * (tile.end - tile.begin);
  int64_t pairs = 0;
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t first = tile.begin / kWordBits * kWordBits; first < tile.end; first += kWordBits) {
      const uint64_t word = tile.visible[r * tile.visible_stride + first / kWordBits];
      pairs += std::popcount(word & word_range(tile.begin - first, tile.end - first));
    }
  }
  return pairs;
}

/// Counts a tile that a forward kernel has done. D is the problem's: a tile in pairs counts its own in pairs.
template <class T, class E>
void count_forward(const ScoreTile<T, E>& tile, int64_t D, int64_t Dv) {
  if (!work_counter.on.load(std::memory_order_relaxed)) return;
  const int64_t pairs = visible_pairs(tile);
  work_counter.add(work_counter.score_entries, pairs);
  work_counter.add(work_counter.score_multiplies, pairs * (D + Dv));
}

/// The same of a backward kernel: scores once more, dP, dV, dQ and dK.
template <class T, class E>
void count_backward(const ScoreTile<T, E>& tile, int64_t D, int64_t Dv) {
  if (!work_counter.on.load(std::memory_order_relaxed)) return;
  work_counter.add(work_counter.score_multiplies, visible_pairs(tile) * (3 * D + 2 * Dv));
}

}  // namespace qkv
