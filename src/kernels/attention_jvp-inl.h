// SPDX-License-Identifier: Apache-2.0
// One tile of forward mode: some queries against one key block, five products.
//
//   S = q k^T     a = exp(S - m) / l                              (recomputed)
//   U = t_q k^T + q t_k^T
//   w = (1 - tanh^2) (scale U + t_scale S) + t_terms              the tangent of the score
//   W = sum a w over the row                                      between the two kernels, from every tile of the row
//   t_out += (r a (w - W)) v + (r a) t_v
//
// The mean is known before anything is multiplied with values, so that what all keys of a row share cancels in w - W,
// not in sums of products. Sums are taken about the tile's own mean for the same reason.
#if defined(QKV_ATTENTION_JVP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_JVP_INL_H_
#undef QKV_ATTENTION_JVP_INL_H_
#else
#define QKV_ATTENTION_JVP_INL_H_
#endif

#include <algorithm>

#include "kernels/attention_scores-inl.h"
#include "kernels/derivative_kernels.h"
#include "kernels/dropout-inl.h"
#include "kernels/nonfinite-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Sums of one row in lanes by position, across lanes at the end.
template <class T>
struct RowSums {
  Vector<T> weights;
  Vector<T> weighted;
};

template <class T>
HWY_INLINE T Total(Vector<T> lanes) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), lanes));
}

/// U of one vector of columns, from the raw products of the row, to w: hidden pairs still hold anything.
template <class T>
HWY_INLINE Vector<T> ScoreTangent(const TangentTile<T>& tile, int64_t r, int64_t c, Vector<T> raw, Vector<T> slope) {
  const Tag<T> d;
  auto w = hn::Zero(d);
  if (tile.t_q != nullptr || tile.t_keys != nullptr) {
    w = hn::Mul(hn::LoadU(d, tile.tangents + r * tile.score.scores_stride + c), hn::Set(d, tile.score.scale));
  }
  if (tile.t_scale != 0) w = hn::MulAdd(raw, hn::Set(d, tile.t_scale), w);
  if (tile.score.softcap > 0) w = hn::Mul(w, slope);
  if (tile.t_terms != nullptr) w = hn::Add(w, hn::LoadU(d, tile.t_terms + r * tile.t_terms_stride + c));
  return w;
}

/// Raw products of one row to weights, and U to w.
template <bool Finished, class T>
HWY_INLINE RowSums<T> WeightsAndTangents(const TangentTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  T* HWY_RESTRICT s = score.scores + r * score.scores_stride;
  T* HWY_RESTRICT t = tile.tangents == nullptr ? nullptr : tile.tangents + r * score.scores_stride;
  const auto hidden = hn::Set(d, kHidden<T>);
  const auto scale = hn::Set(d, Finished ? T{1} : score.scale);
  const auto shift = hn::Set(d, tile.m[r] == kHidden<T> ? T{0} : tile.m[r]);
  const auto inverse_l = hn::Set(d, tile.inverse_l[r]);
  const auto inverse_l_low = hn::Set(d, tile.inverse_l_low[r]);
  // The forward pass has raised the scores of such a row.
  const bool is_lowest = tile.m[r] <= std::numeric_limits<T>::lowest() * (Finished ? T{1} : score.scale);
  RowSums<T> sums{hn::Zero(d), hn::Zero(d)};
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    const auto raw = hn::LoadU(d, s + c);
    Vector<T> slope = hn::Zero(d);
    auto x = ScoreVector<Finished, T>(score, r, c, raw, &slope);
    if (HWY_UNLIKELY(is_lowest)) x = Raised<T>(x);
    // A hidden pair is 0 whatever m, l and its tangents hold.
    const auto shown = ShownLanes(score, r, c);
    const auto e = ExpNonPositive<T>(hn::Sub(hn::Mul(hn::IfThenElse(shown, x, hidden), scale), shift));
    const auto a = hn::IfThenElseZero(shown, hn::MulAdd(e, inverse_l, hn::Mul(e, inverse_l_low)));
    hn::StoreU(a, d, s + c);
    sums.weights = hn::Add(sums.weights, a);
    if (t == nullptr) continue;
    const auto w = hn::IfThenElseZero(shown, ScoreTangent<T>(tile, r, c, raw, slope));
    hn::StoreU(w, d, t + c);
    sums.weighted = hn::MulAdd(a, w, sums.weighted);
  }
  return sums;
}

/// The row's share of sum a, and of sum a w about the tile's own mean.
template <bool Finished, class T>
HWY_INLINE void TangentsOfRow(const TangentTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  const RowSums<T> sums = WeightsAndTangents<Finished, T>(tile, r);
  if (tile.tangents == nullptr) return;
  const T weight = Total<T>(sums.weights);
  const T center = weight == 0 ? T{0} : Total<T>(sums.weighted) / weight;
  const T* HWY_RESTRICT a_row = score.scores + r * score.scores_stride;
  const T* HWY_RESTRICT w_row = tile.tangents + r * score.scores_stride;
  const auto middle = hn::Set(d, center);
  auto rest = hn::Zero(d);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    rest = hn::MulAdd(hn::LoadU(d, a_row + c), hn::Sub(hn::LoadU(d, w_row + c), middle), rest);
  }
  tile.weight_sum[r] = weight;
  tile.center[r] = center;
  tile.centered_sum[r] = Total<T>(rest);
}

/// PanelProducts, added to what is there.
template <class T>
HWY_INLINE void AddPanelProducts(const ScoreTile<T>& tile, const T* rows, const T* panels, T* products) {
  constexpr int64_t W = kPanel<T>;
  for (int64_t c = tile.begin; c < tile.end; c += W) {
    const int64_t vectors = std::min<int64_t>(kTileVectors, (tile.end - c + kLanes<T> - 1) / kLanes<T>);
    Product<Into::kAdd, T>({rows, tile.q_stride, 1, panels + c * tile.D, W, products + c, tile.scores_stride, tile.D},
                           tile.rows, vectors);
  }
}

/// U, from the tangents there are.
template <class T>
HWY_INLINE void TangentProducts(const TangentTile<T>& tile) {
  const ScoreTile<T>& score = tile.score;
  if (tile.t_q != nullptr) PanelProducts(score, tile.t_q, score.q_stride, score.keys, score.D, tile.tangents);
  if (tile.t_keys == nullptr) return;
  if (tile.t_q == nullptr) {
    PanelProducts(score, score.q, score.q_stride, tile.t_keys, score.D, tile.tangents);
  } else {
    AddPanelProducts(score, score.q, tile.t_keys, tile.tangents);
  }
}

template <class T>
void TangentScores(const TangentTile<T>& tile) {
  if (!tile.has_products) RawScores(tile.score);
  if (tile.tangents != nullptr) TangentProducts(tile);
  for (int64_t r = 0; r < tile.score.rows; ++r) {
    if (tile.score.finished) {
      TangentsOfRow<true, T>(tile, r);
    } else {
      TangentsOfRow<false, T>(tile, r);
    }
  }
}

/// r a (w - W) in the place of w, r a in the place of a.
template <class T>
HWY_INLINE void WeightTangentsOfRow(const TangentTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  T* HWY_RESTRICT a_row = score.scores + r * score.scores_stride;
  T* HWY_RESTRICT w_row = tile.tangents == nullptr ? nullptr : tile.tangents + r * score.scores_stride;
  const auto mean = hn::Set(d, tile.mean[r]);
  const auto low = hn::Set(d, tile.mean_low[r]);
  const bool drop = tile.dropout.kept != nullptr;
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    auto a = hn::LoadU(d, a_row + c);
    auto moved = hn::Zero(d);
    if (w_row != nullptr) moved = hn::Mul(a, hn::Sub(hn::Sub(hn::LoadU(d, w_row + c), mean), low));
    if (HWY_UNLIKELY(drop)) {
      const auto factor = DropoutFactors<T>(tile.dropout, r, c);
      moved = hn::Mul(moved, factor);
      hn::StoreU(hn::Mul(a, factor), d, a_row + c);
    }
    if (w_row != nullptr) hn::StoreU(moved, d, w_row + c);
  }
}

/// sums += weights streamed over the tile's columns, chunk by chunk of keys counted from the block's key 0.
template <class T>
HWY_INLINE void AddValues(const ScoreTile<T>& score, int64_t begin, int64_t end, const T* weights, const T* streamed,
                          int64_t stride, T* sums) {
  Product<Into::kAdd, T>(
      {weights + begin, score.scores_stride, 1, streamed + begin * stride, stride, sums, stride, end - begin},
      score.rows, stride / kLanes<T>);
}

template <class T>
void TangentOutputs(const TangentTile<T>& tile) {
  constexpr int64_t kKeys = 128;  // rows of 64 floats that fill L1, as in the forward
  const ScoreTile<T>& score = tile.score;
  if (tile.tangents != nullptr || tile.dropout.kept != nullptr) {
    for (int64_t r = 0; r < score.rows; ++r) WeightTangentsOfRow<T>(tile, r);
  }
  for (int64_t c = score.begin; c < score.end;) {
    const int64_t next = std::min(score.end, (c / kKeys + 1) * kKeys);
    if (tile.tangents != nullptr) AddValues(score, c, next, tile.tangents, tile.v, tile.v_stride, tile.t_out);
    if (tile.t_v != nullptr) AddValues(score, c, next, score.scores, tile.t_v, tile.v_stride, tile.t_out);
    c = next;
  }
  if (tile.tangents != nullptr) AddNonFiniteKeys(score, tile.v_nonfinite, tile.tangents, tile.t_out, tile.v_stride);
  if (tile.t_v != nullptr) AddNonFiniteKeys(score, tile.t_v_nonfinite, score.scores, tile.t_out, tile.v_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_JVP_INL_H_
