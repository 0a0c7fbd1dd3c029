// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/backward_rows.h"
#include "attention/dropout.h"
#include "attention/rows.h"
#include "attention/terms.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// Some rows of the current query block against the current key block, with its dS.
template <class T>
struct BackwardPart {
  TileRange range;
  TileCover<T> cover;
  BackwardTile<T> tile;
  const T* d_scores() const { return tile.d_scores; }
};

/// Packs one key block and one query block at a time and runs backward tiles over them. One per worker.
template <class T>
class BackwardTiles {
 public:
  BackwardTiles(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows);

  /// Key block `index` of a key/value head becomes current; its dK and dV sums start at zero.
  void load_keys(int64_t b, int64_t hkv, int64_t index);
  /// Query block `index` of a head becomes current.
  void load_queries(int64_t b, int64_t h, int64_t index);

  /// Runs the current blocks' tile, on the edge of a mask in smaller groups of rows; dK and dV are added where wanted.
  /// Returns the parts in which some pair is visible, with their dS.
  const std::vector<BackwardPart<T>>& run(bool want_keys, bool want_values);
  /// Adds the parts' dQ (without scale) to `d_q` [rows of the query block, q_stride].
  void add_query_gradients(T* d_q);

  const TileRange& range() const { return range_; }
  int64_t scores_stride() const { return kBackwardKeys; }
  int64_t q_stride() const { return q_stride_; }
  int64_t v_stride() const { return v_stride_; }
  const T* queries() const { return q_raw_; }
  const T* d_k() const { return d_k_.get(); }
  const T* d_v() const { return d_v_.get(); }

 private:
  /// Packs rows finite into `finite`, listing what was taken out; returns where the rows are as stored.
  const T* load_rows(const StoredRows& stored, int64_t stride, T* finite, T* raw, int64_t* found,
                     NonFiniteRows& nonfinite);

  /// Rows [r, r + rows) of the query block.
  void run_part(int64_t r, int64_t rows);
  BackwardTile<T> tile_of(const BackwardPart<T>& part, int64_t r);

  const Problem& problem_;
  const BackwardRows<T>& rows_;
  const AttentionKernels<T>& kernels_;
  int64_t q_stride_, v_stride_;
  TileRange range_;
  BackwardTile<T> tile_{};  ///< of the whole query block
  std::vector<BackwardPart<T>> parts_;
  const T* q_raw_ = nullptr;
  TilePlanner<T> planner_;
  TileDecisions<T> dropout_;
  AlignedArray<T> keys_, values_, k_, d_k_, d_v_;        // of the key block
  AlignedArray<T> q_, q_finite_, d_out_, d_out_finite_;  // of the query block
  AlignedArray<T> scores_, d_scores_, factors_;          // of the tile
  AlignedArray<int64_t> k_found_, q_found_, d_out_found_;
  AlignedArray<uint8_t> is_whole_row_;
};

}  // namespace qkv
