// SPDX-License-Identifier: Apache-2.0
//
// What forward mode and second order share: a strip of rows of one head against all its keys, walked block by block in
// key order, twice. The first walk computes weights, tangents of scores and the sums their means need; the second one
// uses them with the means known. Between the two they are kept, a strip at a time and within a fixed budget, or else
// computed again by the same code: the bits are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "attention/check.h"
#include "attention/check_derivatives.h"
#include "attention/dropout.h"
#include "attention/key_cache.h"
#include "attention/plan.h"
#include "attention/row_means.h"
#include "attention/rows.h"
#include "attention/tangent_terms.h"
#include "attention/terms.h"
#include "attention/tiling.h"
#include "kernels/derivative_kernels.h"

namespace qkv {

/// Rows of a strip, which share one pass over packed keys: sixteen register tiles, as in the backward.
inline constexpr int64_t kStripRows = 96;
/// On the edge of a causal or window mask rows go in smaller groups.
inline constexpr int64_t kStripEdgeRows = 24;

/// How long key blocks are and whether a strip keeps what it computes for its second walk.
struct StripPlan {
  int64_t block_keys = 0;
  int64_t stride = 0;  ///< of a row of a tile: a block, or less where no sequence fills one
  int64_t tiles = 0;   ///< that are kept
  bool keeps = false;  ///< all tiles of a strip

  /// `copies`: packed forms of k and v, and of their tangents, that one block holds. `bytes`: kept for each pair.
  StripPlan(const Problem& problem, int64_t panel_width, int64_t element_size, int64_t copies, int64_t bytes);
  /// Strips that keep nothing share their passes over the keys.
  int64_t item_rows() const { return keeps ? kStripRows : 8 * kStripRows; }
  /// For tiles that are done with at once.
  void keep_nothing() {
    keeps = false;
    tiles = 1;
  }
  /// Elements of one kept array.
  int64_t elements() const { return tiles * kStripRows * stride; }
  /// Where row r of an item has its part of a block.
  int64_t place(int64_t first_key, int64_t r) const {
    return ((keeps ? first_key / block_keys * kStripRows : 0) + r % kStripRows) * stride;
  }
};

/// Some rows of an item against one key block, in which some pair is visible.
template <class T>
struct StripPart {
  TileRange range;
  TileCover<T> cover;
  int64_t r = 0;  ///< of the item
};

/// The rows of an item, and tiles over them. One per worker.
template <class T>
class TangentStrip {
 public:
  TangentStrip(const Problem& problem, const BucketMap& buckets, const StateOperands& state,
               const TangentOperands& tangents, const StripPlan& plan);

  /// The item becomes current.
  void load(const RowItem& item);

  /// Calls body(part) for the parts of the item that lie in the key block from `first_key` on, the last strip first:
  /// that is the order in which items of one strip follow each other, too.
  template <class F>
  void for_each_part(const RowItem& item, int64_t first_key, F body) {
    const int64_t keys = std::min(plan_.block_keys, problem_.sequence(item.b).Tk - first_key);
    for (int64_t r = (item.rows - 1) / kStripRows * kStripRows; r >= 0; r -= kStripRows) {
      split({item.b, item.h, item.first_row + r, std::min(kStripRows, item.rows - r), first_key, keys}, r, body);
    }
  }

  /// Makes the tangents of the part's terms current.
  void set_terms(const StripPart<T>& part) { t_terms_.set(part.range, part.cover.begin, part.cover.end); }
  bool terms_move() const { return t_terms_.any(); }
  TileDropout<T> dropout(const StripPart<T>& part) {
    return dropout_.decide(part.range, {part.cover.begin, part.cover.end});
  }
  /// The part's cover again, after other tiles have used its memory.
  TileCover<T> cover(const StripPart<T>& part) { return planner_.plan(part.range, part.r % kStripRows); }

  /// A tile of the part over keys and weights; operands of values are the caller's to add.
  TangentTile<T> tile(const StripPart<T>& part, const T* keys, const T* t_keys, T* weights, T* moves) const;

  /// Where the forward pass multiplies in pairs of bf16, q . k of the part as it does: weights fit m and l only when
  /// their scores are the very ones. Everything else is computed in T.
  void multiply(const StripPart<T>& part, TangentTile<T>& tile);

  /// Sums of the last tile, and the means, by row of the item.
  WeightedSums tile_sums(int64_t r) const {
    return {static_cast<double>(weight_sum_[r]), static_cast<double>(center_[r]),
            static_cast<double>(centered_sum_[r])};
  }
  void set_mean(int64_t r, TwoParts<T> mean) {
    mean_[r] = mean.high;
    mean_low_[r] = mean.low;
  }
  const RowWeights<T>& weights(int64_t r) const { return rows_[static_cast<size_t>(r)]; }
  int64_t q_stride() const { return q_stride_; }
  const T* queries() const { return q_.get(); }

 private:
  template <class F>
  void split(const TileRange& range, int64_t r, const F& body) {
    const TileCover<T> cover = planner_.plan(range, r % kStripRows);
    if (cover.empty()) return;
    if (range.rows <= kStripEdgeRows || !cover.edge) return body(StripPart<T>{range, cover, r});
    for (int64_t first = 0; first < range.rows; first += kStripEdgeRows) {
      TileRange rows = range;
      rows.first_row += first;
      rows.rows = std::min(kStripEdgeRows, range.rows - first);
      split(rows, r + first, body);
    }
  }
  void load_rows(const Operand& operand, const RowItem& item, AlignedArray<T>& to);

  const Problem& problem_;
  const StateOperands& state_;
  const TangentOperands& tangents_;
  const StripPlan& plan_;
  const AttentionKernels<T>& kernels_;
  int64_t q_stride_;
  TilePlanner<T> planner_;
  TileDecisions<T> dropout_;
  TangentTerms<T> t_terms_;
  AlignedArray<T> q_, t_q_;            // [item rows, q_stride], with the sign of the scale
  AlignedArray<BFloat16Pair> pair_q_;  // [item rows, D in pairs], likewise
  std::optional<KeyCache<float, BFloat16Pair>> pair_keys_;
  std::vector<RowWeights<T>> rows_;  // of the item, like the rest
  AlignedArray<T> m_, inverse_l_, inverse_l_low_, mean_, mean_low_, weight_sum_, center_, centered_sum_;
};

}  // namespace qkv
