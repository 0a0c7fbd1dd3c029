// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"
#include "attention/terms.h"
#include "support/aligned.h"

namespace qkv {

/// Gradients that are sums over dS: bias, slopes, table. Tiles add to partial sums that one task owns or whose order
/// the wavefront fixes; the partial sums are reduced in a fixed order at the end. Sums run in f64.
///
///   dBias = dS summed over broadcast axes     dSlope_h = sum -|i + offset - j| dS     dTable = dS summed per bucket
template <class T>
class ScoreSums {
 public:
  /// `block_keys`: of the key blocks that add_tile is told the numbers of, kMostForwardKeys at most.
  ScoreSums(const Problem& problem, const BucketMap& buckets, const AttentionOptions& options,
            const AttentionGradients& gradients, int64_t block_keys);

  /// True when add_tile or add_rows has work.
  bool has_sums() const { return bias_ || slopes_view_ || table_view_; }
  /// True when add_rows has work.
  bool has_row_sums() const { return row_slopes_.get() != nullptr || row_bias_.get() != nullptr; }
  /// True when a bias gradient has both its Tq and Tk axes and is summed over b or h: see backward_bias.cc.
  bool bias_needs_own_pass() const { return bias_ && full_queries_ && full_keys_ && (bias_sums_b_ || bias_sums_h_); }
  const Operand& bias() const { return bias_; }
  bool bias_sums_b() const { return bias_sums_b_; }
  bool bias_sums_h() const { return bias_sums_h_; }

  /// dS of a tile, columns [begin, end): what no other task touches. `key_block` is the task's.
  void add_tile(const TileRange& tile, int64_t key_block, int64_t begin, int64_t end, const T* d_scores,
                int64_t stride);
  /// The part that is summed per row, to be called in key order.
  void add_rows(const TileRange& tile, int64_t begin, int64_t end, const T* d_scores, int64_t stride);
  /// Stores the gradients.
  void finish();

 private:
  int64_t key_sum(int64_t b, int64_t h, int64_t j) const { return (b * problem_.H + h) * problem_.Tk + j; }
  void add_table(const TileRange& tile, int64_t key_block, int64_t begin, int64_t end, const T* d_scores,
                 int64_t stride);
  void finish_bias();
  void finish_slopes();
  void finish_table();

  const Problem& problem_;
  const BucketMap& buckets_;
  Operand bias_;
  MutableTensorView bias_view_, slopes_view_, table_view_;
  bool bias_sums_b_ = false, bias_sums_h_ = false;  ///< the axis is 1 in the bias and longer in the problem
  bool full_queries_ = false, full_keys_ = false;   ///< the axis is not summed over
  int64_t bias_B_ = 1, bias_H_ = 1;
  int64_t most_key_blocks_ = 0;
  AlignedArray<double> row_slopes_;  ///< [rows], contiguous rows
  AlignedArray<double> row_bias_;    ///< [rows]
  AlignedArray<double> key_bias_;    ///< [B, H, Tk]
  AlignedArray<double> table_sums_;  ///< [B, H, key blocks, buckets]
};

}  // namespace qkv
