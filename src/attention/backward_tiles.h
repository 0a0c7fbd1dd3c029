// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/backward_rows.h"
#include "attention/dropout.h"
#include "attention/pairs.h"
#include "attention/rows.h"
#include "attention/terms.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// Some rows of the current query block against the current key block, with its dS.
template <class T, class E = T>
struct BackwardPart {
  TileRange range;
  TileCover<T> cover;
  BackwardTile<T, E> tile;
  const T* d_scores() const { return tile.d_scores; }
};

/// What is read of a tile beside its products.
struct BackwardNeeds {
  bool d_scores = false;    ///< parts' dS
  bool scale_sums = false;  ///< parts' sums for d_scale; only in pairs, elsewhere dQ gives them
};

/// Packs one key block and one query block at a time and runs backward tiles over them. One per worker. E is T, or
/// BFloat16Pair where the products are of bf16.
template <class T, class E = T>
class BackwardTiles {
 public:
  BackwardTiles(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows, BackwardNeeds needs);

  /// Key block `index` of a key/value head becomes current; its dK and dV sums start at zero.
  void load_keys(int64_t b, int64_t hkv, int64_t index);
  /// Query block `index` of a head becomes current.
  void load_queries(int64_t b, int64_t h, int64_t index);

  /// Runs the current blocks' tile, on the edge of a mask in smaller groups of rows; dK and dV are added where wanted.
  /// Returns the parts in which some pair is visible, with their dS.
  const std::vector<BackwardPart<T, E>>& run(bool want_keys, bool want_values);
  /// Of the same tiles only what rows sum for delta, in the parts' `delta_sums`.
  const std::vector<BackwardPart<T, E>>& run_delta_sums();
  /// Adds the parts' dQ (without scale) to `d_q` [rows of the query block, q_stride].
  void add_query_gradients(T* d_q);

  const TileRange& range() const { return range_; }
  int64_t scores_stride() const { return block_keys_; }
  int64_t q_width() const { return tile_.q_width; }
  int64_t v_width() const { return tile_.v_width; }
  /// Of the query block, [rows, q_stride], with the sign of the scale.
  const E* queries() const { return tile_.score.q; }
  int64_t q_stride() const { return tile_.score.q_stride; }
  const T* d_k() const { return d_k_.get(); }
  const T* d_v() const { return d_v_.get(); }

 private:
  /// One operand of the query block in both its forms.
  struct Rows {
    AlignedArray<E> streamed, broadcast;
    AlignedArray<int64_t> found;
  };
  /// Packs rows into both forms, times -1 when `negate`, listing what was taken out of the streamed one; returns the
  /// broadcast form.
  const E* load_rows(const StoredRows& stored, bool negate, Rows& rows, int64_t stride, int64_t width,
                     NonFiniteRows& nonfinite);

  /// Rows [r, r + rows) of the query block.
  void run_part(int64_t r, int64_t rows);
  void run_kernel(const BackwardTile<T, E>& tile) const;
  BackwardTile<T, E> tile_of(const BackwardPart<T, E>& part, int64_t r);

  const Problem& problem_;
  const BackwardRows<T>& rows_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  BackwardNeeds needs_;
  bool sums_deltas_ = false;  ///< parts run for their delta_sums
  TileRange range_;
  BackwardTile<T, E> tile_{};  ///< of the whole query block
  std::vector<BackwardPart<T, E>> parts_;
  TilePlanner<T> planner_;
  TileDecisions<T> dropout_;
  AlignedArray<E> keys_, values_, k_;  // of the key block
  AlignedArray<T> d_k_, d_v_;
  AlignedArray<int64_t> k_found_;
  Rows q_, d_out_;                                                                    // of the query block
  AlignedArray<T> scores_, d_scores_, factors_, products_, scale_sums_, delta_sums_;  // of the tile
  AlignedArray<E> weights_by_key_, d_inner_by_key_, d_inner_by_row_;
  AlignedArray<uint8_t> is_whole_row_;
};

}  // namespace qkv
