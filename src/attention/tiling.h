// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/support/checked.h"

namespace qkv {

// Blocks of keys and of queries are a property of the problem's widths and type, never of the schedule: the order of
// every sum follows from them.

/// Largest power of two in [low, high] whose rows of `row_bytes` fit `budget`.
constexpr int64_t fitting_block(int64_t row_bytes, int64_t budget, int64_t low, int64_t high) {
  int64_t block = high;
  while (block > low && block * row_bytes > budget) block /= 2;
  return block;
}

/// Keys of one forward block, counted from key 0. Packed keys and values of a block take half of a 1 MiB L2, next to
/// the scores of a row block.
inline constexpr int64_t kMostForwardKeys = 512;
inline int64_t forward_key_block(int64_t D, int64_t Dv, int64_t element_size) {
  return fitting_block((D + Dv) * element_size, 512 * 1024, 128, kMostForwardKeys);
}

/// Keys of one backward block: whole panels and whole register tiles of every instruction set (multiples of 64 and of
/// 6). The longer block reads queries, upstream gradients and dQ sums half as often, from beyond L2. At D = Dv = 64 in
/// f32 it takes 480 KiB packed, with its gradients, and scores and dS of a tile 290 KiB; wider rows take the shorter.
inline constexpr int64_t kMostBackwardKeys = 384;
inline int64_t backward_key_block(int64_t D, int64_t Dv, int64_t element_size) {
  return (D + Dv) * element_size <= 512 ? kMostBackwardKeys : kMostBackwardKeys / 2;
}

/// Rows of one backward tile: sixteen register tiles.
inline constexpr int64_t kBackwardRows = 96;

/// The same on the edge of a causal or window mask; even.
inline constexpr int64_t kBackwardEdgeRows = 24;

}  // namespace qkv
