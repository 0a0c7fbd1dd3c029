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

template <class T>
struct DerivativeKernels {
  /// Weights, tangents of scores and their sums; then, with the means, t_out. The second changes weights and tangents.
  void (*tangent_scores)(const TangentTile<T>& tile);
  void (*tangent_outputs)(const TangentTile<T>& tile);
};

}  // namespace qkv
