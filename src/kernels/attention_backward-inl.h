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
#include "kernels/dropout-inl.h"
#include "kernels/nonfinite-inl.h"

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
  const auto hidden = hn::Set(d, kHidden<T>);
  const auto inverse_l = hn::Set(d, tile.inverse_l[r]);
  const auto inverse_l_low = hn::Set(d, tile.inverse_l_low[r]);
  // The forward pass has raised the scores of such a row.
  const bool is_lowest = tile.m[r] <= std::numeric_limits<T>::lowest() * (Finished ? T{1} : score.scale);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    Vector<T> slope = hn::Zero(d);
    auto x = ScoreVector<Finished, T>(score, r, c, hn::LoadU(d, s + c), &slope);
    if (HWY_UNLIKELY(is_lowest)) x = Raised<T>(x);
    const auto shown = ShownLanes(score, r, c);
    const auto e = ExpNonPositive<T>(hn::Sub(hn::Mul(hn::IfThenElse(shown, x, hidden), scale), shift));
    // A hidden pair is 0 whatever m and l hold.
    const auto p = hn::IfThenElseZero(shown, hn::MulAdd(e, inverse_l, hn::Mul(e, inverse_l_low)));
    hn::StoreU(p, d, s + c);
    if (Finished && score.softcap > 0) hn::StoreU(slope, d, tile.factors + r * score.scores_stride + c);
  }
}

/// Zeroes the lanes of pairs that are hidden: NaN of a hidden key or value must not pass.
template <class T>
HWY_INLINE Vector<T> ZeroHidden(const ScoreTile<T>& score, int64_t r, int64_t c, Vector<T> x) {
  if (!HasHidden(score, c)) return x;
  return hn::IfThenElseZero(LanesOfBits<T>(score.visible + r * score.visible_stride, c), x);
}

/// Sum of P (dP - shift) over the row, in lanes by position.
template <class T>
HWY_INLINE T WeightedSum(const BackwardTile<T>& tile, int64_t r, T shift) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  const int64_t row = r * score.scores_stride;
  auto sum = hn::Zero(d);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    auto dp = hn::LoadU(d, tile.d_scores + row + c);
    if (tile.dropout.kept != nullptr) dp = hn::Mul(dp, DropoutFactors<T>(tile.dropout, r, c));
    const auto share = hn::Mul(hn::LoadU(d, tile.score.scores + row + c), hn::Sub(dp, hn::Set(d, shift)));
    sum = hn::Add(sum, hn::IfThenElseZero(FirstLanes(d, score.end - c), ZeroHidden<T>(score, r, c, share)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// What dP is compared with: delta = high + low, so that what all keys share cancels.
template <class T>
struct Delta {
  T high;
  T low;
};

/// delta of a row, from the very dP it is subtracted from where its tile holds all of them. A sum of large terms has
/// lost low digits: sum P (dP - high) = delta - high (1 - sink's weight) gives them back.
template <class T>
HWY_INLINE Delta<T> DeltaOfRow(const BackwardTile<T>& tile, int64_t r) {
  if (tile.is_whole_row[r] == 0) return {tile.delta[r], T{0}};
  const T high = WeightedSum<T>(tile, r, T{0});
  const T low = WeightedSum<T>(tile, r, high) - high * tile.sink_weight[r];
  tile.final_delta[r] = high + (low + tile.delta[r]);
  return {high, low + tile.delta[r]};
}

/// dS of one row from P and dO v^T; leaves r P in the place of P.
template <class T>
HWY_INLINE void ScoreGradientsOfRow(const BackwardTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  const Delta<T> delta = DeltaOfRow<T>(tile, r);
  const auto high = hn::Set(d, delta.high);
  const auto low = hn::Set(d, delta.low);
  T* HWY_RESTRICT p_row = score.scores + r * score.scores_stride;
  T* HWY_RESTRICT ds_row = tile.d_scores + r * score.scores_stride;
  const bool drop = tile.dropout.kept != nullptr;
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    const auto p = hn::LoadU(d, p_row + c);
    auto dp = hn::LoadU(d, ds_row + c);
    if (HWY_UNLIKELY(drop)) {
      const auto factor = DropoutFactors<T>(tile.dropout, r, c);
      dp = hn::Mul(dp, factor);
      hn::StoreU(hn::Mul(p, factor), d, p_row + c);
    }
    const auto ds = hn::Mul(p, hn::Sub(hn::Sub(dp, high), low));
    hn::StoreU(ZeroHidden<T>(score, r, c, ds), d, ds_row + c);
  }
}

/// sums[key] += sum over the tile's queries of weights[query, key] * streamed[query].
template <class T>
HWY_INLINE void KeySums(const ScoreTile<T>& score, const T* weights, const T* streamed, int64_t stride,
                        const NonFiniteRows& nonfinite, T* sums) {
  Product<Into::kAdd, T>({weights + score.begin, 1, score.scores_stride, streamed, stride, sums + score.begin * stride,
                          stride, score.rows},
                         score.end - score.begin, stride / kLanes<T>);
  AddNonFiniteQueries(score, nonfinite, weights, sums, stride);
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

/// dC, where SoftcapGradients left it.
template <class T>
HWY_INLINE const T* InnerGradients(const BackwardTile<T>& tile) {
  return tile.score.softcap > 0 ? tile.score.scores : tile.d_scores;
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
  PanelProducts(score, tile.d_out, tile.v_stride, tile.values, tile.Dv, tile.d_scores);
  for (int64_t r = 0; r < score.rows; ++r) ScoreGradientsOfRow<T>(tile, r);
  if (tile.d_v != nullptr) {
    KeySums(score, score.scores, tile.d_out_finite, tile.v_stride, tile.d_out_nonfinite, tile.d_v);
  }
  if (score.softcap > 0) SoftcapGradients(tile);
  if (tile.d_k != nullptr) {
    KeySums(score, InnerGradients(tile), tile.q_finite, score.q_stride, tile.q_nonfinite, tile.d_k);
  }
}

template <class T>
void QueryGradients(const BackwardTile<T>& tile) {
  const ScoreTile<T>& score = tile.score;
  const T* d_c = InnerGradients(tile);
  Product<Into::kAdd, T>({d_c + score.begin, score.scores_stride, 1, tile.k + score.begin * score.q_stride,
                          score.q_stride, tile.d_q, score.q_stride, score.end - score.begin},
                         score.rows, score.q_stride / kLanes<T>);
  AddNonFiniteKeys(score, tile.k_nonfinite, d_c, tile.d_q, score.q_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_BACKWARD_INL_H_
