// SPDX-License-Identifier: Apache-2.0
// One backward tile: some queries against one key block, five products.
//
//   S = q k^T            dP = r (dO v^T)            P = exp(S - m) / l  (recomputed)
//   dS = P (dP - delta)  dC = dS (1 - tanh^2) with a soft-cap, else dS
//   dV += (r P)^T dO     dK += dC^T q               dQ += dC k
//
// The factor `scale` of dQ and dK is left to the caller. Every sum starts from zero in registers and is added once per
// tile; tiles come in a fixed order, so no sum depends on the schedule. Between the products one pass goes over each
// row of S and dP while it is in L1.
//
// With operands in pairs of bf16, r P and dC are rounded once, as they enter the products: S and dP pair along the
// width, dV and dK along queries, dQ along keys. dS itself stays in T.
#if defined(QKV_ATTENTION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_BACKWARD_INL_H_
#undef QKV_ATTENTION_BACKWARD_INL_H_
#else
#define QKV_ATTENTION_BACKWARD_INL_H_
#endif

#include <limits>

#include "kernels/attention_scores-inl.h"
#include "kernels/dropout-inl.h"
#include "kernels/nonfinite-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Zeroes the lanes of pairs that are hidden, and those beyond the last column: NaN of a hidden key or value must not
/// pass.
template <class T, class E>
HWY_INLINE Vector<T> ZeroHidden(const ScoreTile<T, E>& score, int64_t r, int64_t c, Vector<T> x) {
  if (HWY_LIKELY(c + kLanes<T> <= score.end && !HasHidden(score, c))) return x;
  return hn::IfThenElseZero(ShownLanes(score, r, c), x);
}

/// dP of one vector: r (dO v^T).
template <class T, class E>
HWY_INLINE Vector<T> WeightGradients(const BackwardTile<T, E>& tile, int64_t r, int64_t c) {
  const auto dp = hn::LoadU(Tag<T>(), tile.d_scores + r * tile.score.scores_stride + c);
  if (HWY_LIKELY(tile.dropout.kept == nullptr)) return dp;
  return hn::Mul(dp, DropoutFactors<T>(tile.dropout, r, c));
}

/// P of one row in place of its raw products; 0 where hidden and beyond the last column. Returns, when `Sum`, the sum
/// of P (dP - shift), in lanes by position.
template <bool Finished, bool Sum, class T, class E>
HWY_INLINE T WeightsOfRow(const BackwardTile<T, E>& tile, int64_t r, T shift) {
  const Tag<T> d;
  const ScoreTile<T, E>& score = tile.score;
  const int64_t row = r * score.scores_stride;
  T* HWY_RESTRICT s = score.scores + row;
  const bool empty = tile.m[r] == kHidden<T>;
  const auto scale = hn::Set(d, Finished ? T{1} : score.scale);
  const auto largest = hn::Set(d, empty ? T{0} : tile.m[r]);
  const auto inverse_l = hn::Set(d, tile.inverse_l[r]);
  const auto inverse_l_low = hn::Set(d, tile.inverse_l_low[r]);
  // The forward pass has raised the scores of such a row.
  const bool is_lowest = tile.m[r] <= std::numeric_limits<T>::lowest() * (Finished ? T{1} : score.scale);
  auto sum = hn::Zero(d);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    Vector<T> slope = hn::Zero(d);
    const auto product = hn::LoadU(d, s + c);
    if (kInPairs<T, E> && tile.products != nullptr) hn::StoreU(product, d, tile.products + row + c);
    auto x = ScoreVector<Finished, T>(score, r, c, product, &slope);
    if (HWY_UNLIKELY(is_lowest)) x = Raised<T>(x);
    const auto e = ExpNonPositive<T>(hn::Sub(hn::Mul(x, scale), largest));
    const auto p = ZeroHidden(score, r, c, hn::MulAdd(e, inverse_l, hn::Mul(e, inverse_l_low)));
    hn::StoreU(p, d, s + c);
    if (Finished && score.softcap > 0) hn::StoreU(slope, d, tile.factors + row + c);
    if (Sum) {
      const auto share = hn::Mul(p, hn::Sub(WeightGradients<T>(tile, r, c), hn::Set(d, shift)));
      sum = hn::Add(sum, ZeroHidden(score, r, c, share));
    }
  }
  return Sum ? hn::GetLane(hn::SumOfLanes(d, sum)) : T{0};
}

/// What dP is compared with: delta = high + low, so that what all keys share cancels.
template <class T>
struct Delta {
  T high;
  T low;
};

/// P of a row, and its delta: where the tile holds all keys of the row, from the very dP it is subtracted from. The
/// product of the upstream gradient and the output is near it, and sum P (dP - high) = delta - high (1 - sink's weight)
/// has the digits it lacks.
template <bool Finished, class T, class E>
HWY_INLINE Delta<T> WeightsAndDelta(const BackwardTile<T, E>& tile, int64_t r) {
  if (tile.is_whole_row[r] == 0) {
    WeightsOfRow<Finished, false, T>(tile, r, T{0});
    return {tile.delta[r], tile.delta_low[r]};
  }
  const T high = tile.estimate[r];
  const T sum = WeightsOfRow<Finished, true, T>(tile, r, high);
  const T low = (sum - high * tile.sink_weight[r]) + tile.delta[r];
  tile.final_delta[r] = high + low;
  return {high, low};
}

/// What one vector of a row gives to the products.
template <class T>
struct Gradients {
  Vector<T> weight;   ///< r P
  Vector<T> d_inner;  ///< dC
};

/// Leaves dS in the place of dP where it is wanted.
template <class T, class E>
HWY_INLINE Gradients<T> GradientsOfVector(const BackwardTile<T, E>& tile, int64_t r, int64_t c, Delta<T> delta) {
  const Tag<T> d;
  const ScoreTile<T, E>& score = tile.score;
  const int64_t at = r * score.scores_stride + c;
  auto p = hn::LoadU(d, score.scores + at);
  const auto dp = WeightGradients<T>(tile, r, c);
  auto ds = hn::Mul(p, hn::Sub(hn::Sub(dp, hn::Set(d, delta.high)), hn::Set(d, delta.low)));
  ds = ZeroHidden(score, r, c, ds);
  if (!kInPairs<T, E> || tile.keep_d_scores) hn::StoreU(ds, d, tile.d_scores + at);
  if (HWY_UNLIKELY(tile.dropout.kept != nullptr)) {
    p = hn::Mul(p, DropoutFactors<T>(tile.dropout, r, c));
    hn::StoreU(p, d, score.scores + at);
  }
  if (HWY_LIKELY(score.softcap <= 0)) return {p, ds};
  // A hidden pair's slope may be NaN; its dS is 0 and stays 0.
  const auto dc = hn::IfThenZeroElse(hn::Eq(ds, hn::Zero(d)), hn::Mul(ds, hn::LoadU(d, tile.factors + at)));
  hn::StoreU(dc, d, tile.factors + at);
  return {p, dc};
}

/// dC, unrounded.
template <class T, class E>
HWY_INLINE const T* InnerGradients(const BackwardTile<T, E>& tile) {
  return tile.score.softcap > 0 ? tile.factors : tile.d_scores;
}

/// The pass over rows and the products behind it, where operands are of T; backward_pairs-inl.h has those of pairs.
template <class T, class E>
struct BackwardSteps {
  using Tile = BackwardTile<T, E>;

  template <bool Finished>
  static HWY_INLINE void GradientsOfRows(const Tile& tile) {
    for (int64_t r = 0; r < tile.score.rows; ++r) {
      const Delta<T> delta = WeightsAndDelta<Finished, T>(tile, r);
      for (int64_t c = tile.score.begin; c < tile.score.end; c += kLanes<T>) GradientsOfVector<T>(tile, r, c, delta);
    }
  }
  /// sums[key] += sum over the tile's queries of weights[query, key] * streamed[query].
  static HWY_INLINE void KeySums(const Tile& tile, const T* weights, const T* streamed, int64_t width, T* sums) {
    const ScoreTile<T>& score = tile.score;
    Product<Into::kAdd, T>(
        {weights + score.begin, 1, score.scores_stride, streamed, width, sums + score.begin * width, width, score.rows},
        score.end - score.begin, width / kLanes<T>);
  }
  static HWY_INLINE void AddValueGradients(const Tile& tile) {
    KeySums(tile, tile.score.scores, tile.d_out_streamed, tile.v_width, tile.d_v);
  }
  static HWY_INLINE void AddKeyGradients(const Tile& tile) {
    KeySums(tile, InnerGradients(tile), tile.q_streamed, tile.q_width, tile.d_k);
  }
  static HWY_INLINE void AddQueryGradients(const Tile& tile) {
    const ScoreTile<T>& score = tile.score;
    Product<Into::kAdd, T>(
        {InnerGradients(tile) + score.begin, score.scores_stride, 1, tile.k_streamed + score.begin * tile.q_width,
         tile.q_width, tile.d_q, tile.q_width, score.end - score.begin},
        score.rows, tile.q_width / kLanes<T>);
  }
};

template <class T, class E>
void DeltaSums(const BackwardTile<T, E>& tile) {
  const ScoreTile<T, E>& score = tile.score;
  RawScores(score);
  PanelProducts(score, tile.d_out, tile.d_out_stride, tile.values, tile.Dv, tile.d_scores);
  for (int64_t r = 0; r < score.rows; ++r) {
    tile.delta_sums[r] = score.finished ? WeightsOfRow<true, true, T>(tile, r, tile.estimate[r])
                                        : WeightsOfRow<false, true, T>(tile, r, tile.estimate[r]);
  }
}

template <class T, class E>
void BackwardOfTile(const BackwardTile<T, E>& tile) {
  using Steps = BackwardSteps<T, E>;
  const ScoreTile<T, E>& score = tile.score;
  RawScores(score);
  PanelProducts(score, tile.d_out, tile.d_out_stride, tile.values, tile.Dv, tile.d_scores);
  if (score.finished) {
    Steps::template GradientsOfRows<true>(tile);
  } else {
    Steps::template GradientsOfRows<false>(tile);
  }
  if (tile.d_v != nullptr) {
    Steps::AddValueGradients(tile);
    AddNonFiniteQueries(score, tile.d_out_nonfinite, score.scores, tile.d_v, tile.v_width);
  }
  if (tile.d_k != nullptr) {
    Steps::AddKeyGradients(tile);
    AddNonFiniteQueries(score, tile.q_nonfinite, InnerGradients(tile), tile.d_k, tile.q_width);
  }
}

template <class T, class E>
void QueryGradients(const BackwardTile<T, E>& tile) {
  BackwardSteps<T, E>::AddQueryGradients(tile);
  AddNonFiniteKeys(tile.score, tile.k_nonfinite, InnerGradients(tile), tile.d_q, tile.q_width);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_BACKWARD_INL_H_
