// SPDX-License-Identifier: Apache-2.0
// One backward tile: some queries against one key block, five products.
//
//   S = q k^T            P = exp(S - m) / l         (recomputed)
//   dP = r (dO v^T)      dS = P (dP - delta)        dC = dS (1 - tanh^2) with a soft-cap, else dS
//   dV += (r P)^T dO     dK += dC^T q               dQ += dC k
//
// The factor `scale` of dQ and dK is left to the caller. Every sum starts from zero in registers and is added once per
// tile; tiles come in a fixed order, so no sum depends on the schedule.
#if defined(QKV_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_BACKWARD_INL_H_
#undef QKV_ATTENTION_BACKWARD_INL_H_
#else
#define QKV_ATTENTION_BACKWARD_INL_H_
#endif

#include "kernels/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// P of one row in place of its raw products; 0 where hidden and beyond the last column.
template <bool Finished, class T>
HWY_INLINE void WeightsOfRow(const BackwardTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  T* HWY_RESTRICT s = score.scores + r * score.scores_stride;
  const bool empty = tile.m[r] == kHidden<T>;
  const auto scale = hn::Set(d, Finished ? T{1} : score.scale);
  const auto shift = hn::Set(d, empty ? T{0} : tile.m[r]);
  const auto inverse_l = hn::Set(d, tile.inverse_l[r]);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    Vector<T> slope = hn::Zero(d);
    const auto x = ScoreVector<Finished, T>(score, r, c, hn::LoadU(d, s + c), &slope);
    auto p = hn::Mul(ExpNonPositive<T>(hn::MulSub(x, scale, shift)), inverse_l);
    // A hidden pair is 0 whatever m and l hold.
    if (score.terms != nullptr) p = hn::IfThenZeroElse(hn::Eq(x, hn::Set(d, kHidden<T>)), p);
    hn::StoreU(hn::IfThenElseZero(FirstLanes(d, score.end - c), p), d, s + c);
    if (Finished && score.softcap > 0) hn::StoreU(slope, d, tile.factors + r * score.scores_stride + c);
  }
}

/// dS of one row from P and dO v^T; leaves r P in the place of P.
template <class T>
HWY_INLINE void ScoreGradientsOfRow(const BackwardTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  T* HWY_RESTRICT p_row = score.scores + r * score.scores_stride;
  T* HWY_RESTRICT ds_row = tile.d_scores + r * score.scores_stride;
  const auto delta = hn::Set(d, tile.delta[r]);
  const bool drop = tile.dropout.row_keys != nullptr;
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    const auto p = hn::LoadU(d, p_row + c);
    auto dp = hn::LoadU(d, ds_row + c);
    if (HWY_UNLIKELY(drop)) {
      const auto factor = DropoutFactors<T>(tile.dropout, r, c);
      dp = hn::Mul(dp, factor);
      hn::StoreU(hn::Mul(p, factor), d, p_row + c);
    }
    auto ds = hn::Mul(p, hn::Sub(dp, delta));
    if (score.terms != nullptr) {
      const auto term = hn::LoadU(d, score.terms + r * score.terms_stride + c);
      ds = hn::IfThenZeroElse(hn::Eq(term, hn::Set(d, kHidden<T>)), ds);
    }
    hn::StoreU(ds, d, ds_row + c);
  }
}

/// dV += (r P)^T dO, with P still in the scores.
template <class T>
HWY_INLINE void ValueGradients(const BackwardTile<T>& tile) {
  const ScoreTile<T>& score = tile.score;
  Product<Into::kAdd, T>({score.scores + score.begin, 1, score.scores_stride, tile.d_out, tile.v_stride,
                          tile.d_v + score.begin * tile.v_stride, tile.v_stride, score.rows},
                         score.end - score.begin, tile.v_stride / kLanes<T>);
  if (HWY_UNLIKELY(tile.d_out_nonfinite_count > 0)) {
    AddNonFinite(score, tile.d_out_nonfinite, tile.d_out_nonfinite_count, score.scores, tile.d_v, tile.v_stride, true);
  }
}

/// dC = dS (1 - tanh^2), in the place of the scores.
template <class T>
HWY_INLINE void SoftcapGradients(const BackwardTile<T>& tile) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  for (int64_t r = 0; r < score.rows; ++r) {
    const int64_t row = r * score.scores_stride;
    for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
      const auto ds = hn::LoadU(d, tile.d_scores + row + c);
      // A hidden pair's slope may be NaN; its dS is 0 and stays 0.
      const auto dc = hn::IfThenZeroElse(hn::Eq(ds, hn::Zero(d)), hn::Mul(ds, hn::LoadU(d, tile.factors + row + c)));
      hn::StoreU(dc, d, score.scores + row + c);
    }
  }
}

template <class T>
void BackwardOfTile(const BackwardTile<T>& tile) {
  const ScoreTile<T>& score = tile.score;
  RawScores(score);
  for (int64_t r = 0; r < score.rows; ++r) {
    if (score.finished) {
      WeightsOfRow<true, T>(tile, r);
    } else {
      WeightsOfRow<false, T>(tile, r);
    }
  }
  constexpr int64_t W = kPanel<T>;
  for (int64_t c = score.begin; c < score.end; c += W) {
    Product<Into::kSet, T>(
        {tile.d_out, tile.v_stride, 1, tile.values + c * tile.Dv, W, tile.d_scores + c, score.scores_stride, tile.Dv},
        score.rows, kTileVectors);
  }
  for (int64_t r = 0; r < score.rows; ++r) ScoreGradientsOfRow<T>(tile, r);
  if (tile.d_v != nullptr) ValueGradients(tile);
  const T* d_c = tile.d_scores;
  if (score.softcap > 0) {
    SoftcapGradients(tile);
    d_c = score.scores;
  }
  const int64_t keys = score.end - score.begin;
  const int64_t vectors = score.q_stride / kLanes<T>;
  if (tile.d_k != nullptr) {
    Product<Into::kAdd, T>({d_c + score.begin, 1, score.scores_stride, score.q, score.q_stride,
                            tile.d_k + score.begin * score.q_stride, score.q_stride, score.rows},
                           keys, vectors);
  }
  if (tile.d_q != nullptr) {
    Product<Into::kAdd, T>({d_c + score.begin, score.scores_stride, 1, tile.k + score.begin * score.q_stride,
                            score.q_stride, tile.d_q, score.q_stride, keys},
                           score.rows, vectors);
    if (HWY_UNLIKELY(tile.k_nonfinite_count > 0)) {
      AddNonFinite(score, tile.k_nonfinite, tile.k_nonfinite_count, d_c, tile.d_q, score.q_stride, false);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_BACKWARD_INL_H_
