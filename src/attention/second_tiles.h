// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/packed_blocks.h"
#include "attention/tangent_strip.h"

namespace qkv {

/// What a call of attention_second_order is given, as operands; absent ones are zero, or not wanted.
struct SecondOperands {
  StateOperands state;
  Operand d_out, d_lse;
  TangentOperands cotangents;
  Operand g_q, g_k, g_v, g_d_out, g_d_lse;
};

/// Means over the weights of a row that a gradient of its scores needs; a sink counts with dP = z = 0 and w = t_sink.
template <class T>
struct SecondMeans {
  TwoParts<T> w, delta, z;   ///< delta less dLSE
  T rest = 0;                ///< sum a (dP - delta)(w - W), the sink's -delta (t_sink - W) included
  double tangent = 0;        ///< W
  double sink_gradient = 0;  ///< G of the sink
};

/// Sums over the tiles of a row.
struct SecondSums {
  WeightedSums w, d_p, z;
  double cross = 0;  ///< sum a (w - its center) (dP - its center)

  void add(const SecondSums& tile);
  /// `d_lse` and `t_sink`: of the row and its head, or 0.
  template <class T>
  SecondMeans<T> means(const RowWeights<T>& weights, double d_lse, double t_sink) const;
};

/// Runs the tiles of one item of rows at a time. One per worker.
template <class T>
class SecondTiles {
 public:
  SecondTiles(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands, const StripPlan& plan);

  /// The item becomes current; its sums start at zero.
  void load(const RowItem& item);
  TangentStrip<T>& strip() { return strip_; }

  /// Weights, w, dP and z of a part, kept where the plan says so. `add`: also adds to the sums of its rows.
  void run_scores(const StripPart<T>& part, bool add);
  /// The sums of the item's rows are complete.
  SecondMeans<T> means(int64_t r) const;
  void set_means(int64_t r, const SecondMeans<T>& means);

  /// The part's G, E, dC and r a (w - W), with a cover that stays until the next block's parts.
  SecondTile<T> run_gradients(StripPart<T>& part);
  /// Adds what rows sum. The tile is one that run_gradients gave.
  void add_row_sums(const SecondTile<T>& tile);
  /// Adds what keys sum to the block's `g_k` [keys, q_stride] and `g_v` [keys, v_stride]; null: not wanted.
  void add_key_sums(const SecondTile<T>& tile, T* g_k, T* g_v);
  /// Stores g_q and g_d_out of the item.
  void store_rows(const RowItem& item);

  int64_t q_stride() const { return strip_.q_stride(); }
  int64_t v_stride() const { return v_stride_; }

 private:
  SecondTile<T> make_tile(const StripPart<T>& part);
  /// Packs rows finite, with the sign of the scale or without, listing what was taken out.
  void load_finite(const Operand& operand, const RowItem& item, int64_t columns, T sign, AlignedArray<T>& to,
                   AlignedArray<int64_t>& found, FiniteRows<T>& rows);
  static FiniteRows<T> from_row(const FiniteRows<T>& rows, int64_t r, int64_t stride);

  const Problem& problem_;
  const SecondOperands& operands_;
  const StripPlan& plan_;
  const AttentionKernels<T>& kernels_;
  const DerivativeKernels<T>& derivatives_;
  RowItem item_ = {};
  int64_t v_stride_;
  TangentStrip<T> strip_;
  PackedBlocks<T> packed_;
  AlignedArray<T> weights_, moves_, d_p_, z_, slope_, bend_;        // [tiles][strip rows, stride]
  AlignedArray<T> q_, c_q_, d_out_, d_out_finite_, g_q_, g_d_out_;  // [item rows, stride]
  AlignedArray<int64_t> q_found_, c_q_found_, d_out_found_;
  FiniteRows<T> q_rows_, c_q_rows_, d_out_rows_;
  std::vector<SecondSums> sums_;  // by row of the item, like the rest
  AlignedArray<T> d_p_center_, d_p_sum_, z_center_, z_sum_, cross_sum_;
  AlignedArray<T> delta_, delta_low_, z_mean_, z_mean_low_, rest_;
};

}  // namespace qkv
