// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention_kernels.h"

namespace qkv {

// Kernels of forward mode and second order, in the terms of attention_kernels.h.

/// A tile of forward mode. First its weights and the tangents of its scores with what a row's mean of them needs, then
/// the outputs' tangents, once the means are known.
template <class T>
struct TangentTile {
  ScoreTile<T> score;      ///< scores: on return weights a, 0 where hidden
  bool has_products;       ///< scores hold q . k, as the forward pass has multiplied them
  const T* t_q;            ///< [rows, q_stride]; null: zero
  const T* t_keys;         ///< panels as the keys; null: zero
  T t_scale;               ///< of the packed products; 0: none
  const T* t_terms;        ///< [rows, t_terms_stride], tangents of the terms, of any value where hidden; null: zero
  int64_t t_terms_stride;  ///< may be negative
  const T* m;              ///< [rows]
  const T* inverse_l;      ///< [rows], 1 / l
  const T* inverse_l_low;  ///< [rows], what rounding took from it
  T* tangents;             ///< [rows, scores_stride]: tangents w of the scores, 0 where hidden; null: none moves
  T* weight_sum;           ///< [rows]: sum a
  T* center;               ///< [rows]: sum a w / sum a
  T* centered_sum;         ///< [rows]: sum a (w - center)

  const T* mean;      ///< [rows]: W, the mean of w over the whole row
  const T* mean_low;  ///< [rows], what rounding took from it
  TileDropout<T> dropout;
  const T* v;    ///< [keys, v_stride], finite
  const T* t_v;  ///< likewise; null: zero
  int64_t v_stride;
  NonFiniteRows v_nonfinite;
  NonFiniteRows t_v_nonfinite;
  T* t_out;  ///< [rows, v_stride], += (r a (w - W)) v + (r a) t_v
};

/// Sums of one row over a tile: sum a (x - center) for a quantity x, center its mean over the tile.
template <class T>
struct CenteredSums {
  T* center;  ///< [rows]
  T* sum;     ///< [rows]
};

/// A mean over the whole row, with what rounding took from it.
template <class T>
struct RowMean {
  const T* high;  ///< [rows]
  const T* low;   ///< [rows]
};

/// Rows of queries or keys as a streamed operand.
template <class T>
struct FiniteRows {
  const T* rows = nullptr;  ///< [queries or keys, stride]; null: zero
  NonFiniteRows nonfinite;
};

/// A tile of second order. First its weights, the tangents w of its scores along the cotangents, dP and z with what the
/// row's means need of them; then, with the means, the gradients of scores and what a row sums; then what keys sum.
template <class T>
struct SecondTile {
  TangentTile<T> moved;  ///< scores: a; tangents: w; W in `mean`; its members from `v` on are not used
  const T* d_out;        ///< [rows, v_stride]
  const T* values;       ///< panels of v: [panel][Dv][panel_width]
  const T* c_values;     ///< panels of c_v; null: zero
  int64_t Dv;
  int64_t v_stride;
  TileDropout<T> dropout;
  T* d_p;    ///< [rows, scores_stride]: dP = r dO.v, 0 where hidden
  T* z;      ///< [rows, scores_stride]: r dO.c_v, 0 where hidden
  T* slope;  ///< [rows, scores_stride]: 1 - tanh^2, used with a soft-cap
  T* bend;   ///< [rows, scores_stride]: its derivative times the tangent of what it multiplies, likewise
  CenteredSums<T> d_p_sums;
  CenteredSums<T> z_sums;
  T* cross_sum;  ///< [rows]: sum a (w - its center) (dP - its center)

  RowMean<T> delta;
  RowMean<T> z_mean;
  const T* rest;         ///< [rows]: what else the mean of h holds
  FiniteRows<T> k, c_k;  ///< of q_stride
  FiniteRows<T> v, c_v;  ///< of v_stride
  T* g_q;                ///< [rows, q_stride], += E k + dC c_k; null: not wanted
  T* g_d_out;            ///< [rows, v_stride], += (r a (w - W)) v + (r a) c_v; null: not wanted

  FiniteRows<T> q, c_q;  ///< of q_stride
  FiniteRows<T> d_out_rows;
  T* g_k;  ///< [keys, q_stride], += E^T q + dC^T c_q; null: not wanted
  T* g_v;  ///< [keys, v_stride], += (r a (w - W))^T dO; null: not wanted

  /// G, the gradient of the score, once the means are known; E and dC lie in d_p and z then, r a (w - W) in tangents.
  const T* score_gradients() const { return moved.score.softcap > 0 ? slope : d_p; }
};

template <class T>
struct DerivativeKernels {
  /// Weights, tangents of scores and their sums; then, with the means, t_out. The second changes weights and tangents.
  void (*tangent_scores)(const TangentTile<T>& tile);
  void (*tangent_outputs)(const TangentTile<T>& tile);
  /// Everything of a tile that does not need the means; then, with them, in place: G, E, dC and r a (w - W).
  void (*second_scores)(const SecondTile<T>& tile);
  void (*second_gradients)(const SecondTile<T>& tile);
  /// What second_gradients left, times keys and values, and times queries.
  void (*second_row_sums)(const SecondTile<T>& tile);
  void (*second_key_sums)(const SecondTile<T>& tile);
};

}  // namespace qkv
