// SPDX-License-Identifier: Apache-2.0
// One tile of second order: some queries against one key block, twelve products.
//
//   S = q k^T     a = exp(S - m) / l                     U = c_q k^T + q c_k^T
//   w = (1 - tanh^2) scale U + c_bias                    as in forward mode along the cotangents
//   dP = r (dO v^T)     z = r (dO c_v^T)
//   W, delta, Z: sum a w, sum a dP, sum a z over the row         between the kernels, from every tile of the row
//   h = (dP - delta)(w - W) + (z - Z)     G = a (h - rest), rest = sum a (dP - delta)(w - W), the sink's part included
//   dS = a (dP - delta)     dC = dS (1 - tanh^2)     E = G (1 - tanh^2) + dS scale U d(1 - tanh^2)/ds
//   g_dO += (r a (w - W)) v + (r a) c_v        g_q += E k + dC c_k
//   g_k += E^T q + dC^T c_q                    g_v += (r a (w - W))^T dO
//
// Differences from means are formed before they are multiplied, and the means come in two parts, so that what all keys
// of a row share cancels exactly. The factor `scale` of g_q and g_k is left to the caller.
#if defined(QKV_ATTENTION_SECOND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_SECOND_INL_H_
#undef QKV_ATTENTION_SECOND_INL_H_
#else
#define QKV_ATTENTION_SECOND_INL_H_
#endif

#include "kernels/attention_jvp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// 1 - tanh^2 of one row, and its derivative times scale U, from the raw products.
template <class T>
HWY_INLINE void SlopesOfRow(const SecondTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.moved.score;
  const int64_t row = r * score.scores_stride;
  const auto inverse = hn::Set(d, 1 / score.softcap);
  const auto scale = hn::Set(d, score.scale);
  const bool moves = tile.moved.t_q != nullptr || tile.moved.t_keys != nullptr;
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    Vector<T> slope;
    const auto s = hn::Mul(hn::LoadU(d, score.scores + row + c), scale);
    const auto tanh = Tanh<T>(hn::Mul(s, inverse), slope);
    hn::StoreU(slope, d, tile.slope + row + c);
    auto bend = hn::Zero(d);
    if (moves) {
      const auto u = hn::Mul(hn::LoadU(d, tile.moved.tangents + row + c), scale);
      bend = hn::Mul(hn::Mul(hn::Mul(hn::Set(d, T{-2}), tanh), hn::Mul(slope, inverse)), u);
    }
    hn::StoreU(bend, d, tile.bend + row + c);
  }
}

/// dP and z of one row from raw products, 0 where hidden, and their sums with the weights.
template <class T>
HWY_INLINE RowSums<T> ValueProductsOfRow(const SecondTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.moved.score;
  const int64_t row = r * score.scores_stride;
  const bool drop = tile.dropout.kept != nullptr;
  RowSums<T> sums{hn::Zero(d), hn::Zero(d)};
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    const auto shown = ShownLanes(score, r, c);
    const auto a = hn::LoadU(d, score.scores + row + c);
    const auto factor = drop ? DropoutFactors<T>(tile.dropout, r, c) : hn::Set(d, T{1});
    auto d_p = hn::LoadU(d, tile.d_p + row + c);
    if (HWY_UNLIKELY(drop)) d_p = hn::Mul(d_p, factor);
    d_p = hn::IfThenElseZero(shown, d_p);
    hn::StoreU(d_p, d, tile.d_p + row + c);
    sums.weights = hn::MulAdd(a, d_p, sums.weights);
    if (tile.c_values == nullptr) continue;
    auto z = hn::LoadU(d, tile.z + row + c);
    if (HWY_UNLIKELY(drop)) z = hn::Mul(z, factor);
    z = hn::IfThenElseZero(shown, z);
    hn::StoreU(z, d, tile.z + row + c);
    sums.weighted = hn::MulAdd(a, z, sums.weighted);
  }
  return sums;
}

/// Means of w, dP and z over the tile, and the sums about them.
template <bool Finished, class T>
HWY_INLINE void SecondSumsOfRow(const SecondTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.moved.score;
  const int64_t row = r * score.scores_stride;
  const RowSums<T> moved = WeightsAndTangents<Finished, T>(tile.moved, r);
  const RowSums<T> products = ValueProductsOfRow<T>(tile, r);
  const T weight = Total<T>(moved.weights);
  // Divided one by one: the reciprocal of a subnormal weight is infinite.
  const auto mean = [weight](T sum) { return weight == 0 ? T{0} : sum / weight; };
  const T centers[3] = {mean(Total<T>(moved.weighted)), mean(Total<T>(products.weights)),
                        mean(Total<T>(products.weighted))};
  Vector<T> w_sum = hn::Zero(d), d_p_sum = hn::Zero(d), z_sum = hn::Zero(d), cross = hn::Zero(d);
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    const auto a = hn::LoadU(d, score.scores + row + c);
    const auto w = hn::Sub(hn::LoadU(d, tile.moved.tangents + row + c), hn::Set(d, centers[0]));
    const auto d_p = hn::Mul(a, hn::Sub(hn::LoadU(d, tile.d_p + row + c), hn::Set(d, centers[1])));
    w_sum = hn::MulAdd(a, w, w_sum);
    d_p_sum = hn::Add(d_p_sum, d_p);
    cross = hn::MulAdd(d_p, w, cross);
    if (tile.c_values == nullptr) continue;
    z_sum = hn::MulAdd(a, hn::Sub(hn::LoadU(d, tile.z + row + c), hn::Set(d, centers[2])), z_sum);
  }
  tile.moved.weight_sum[r] = weight;
  tile.moved.center[r] = centers[0];
  tile.moved.centered_sum[r] = Total<T>(w_sum);
  tile.d_p_sums.center[r] = centers[1];
  tile.d_p_sums.sum[r] = Total<T>(d_p_sum);
  tile.z_sums.center[r] = centers[2];
  tile.z_sums.sum[r] = Total<T>(z_sum);
  tile.cross_sum[r] = Total<T>(cross);
}

template <class T>
void SecondScores(const SecondTile<T>& tile) {
  const ScoreTile<T>& score = tile.moved.score;
  if (!tile.moved.has_products) RawScores(score);
  TangentProducts(tile.moved);
  PanelProducts(score, tile.d_out, tile.v_stride, tile.values, tile.Dv, tile.d_p);
  if (tile.c_values != nullptr) PanelProducts(score, tile.d_out, tile.v_stride, tile.c_values, tile.Dv, tile.z);
  for (int64_t r = 0; r < score.rows; ++r) {
    if (score.softcap > 0) SlopesOfRow<T>(tile, r);
    if (score.finished) {
      SecondSumsOfRow<true, T>(tile, r);
    } else {
      SecondSumsOfRow<false, T>(tile, r);
    }
  }
}

template <class T>
HWY_INLINE Vector<T> FromMean(Vector<T> x, const RowMean<T>& mean, int64_t r) {
  const Tag<T> d;
  return hn::Sub(hn::Sub(x, hn::Set(d, mean.high[r])), hn::Set(d, mean.low[r]));
}

/// G, E, dC and r a (w - W) of one row, each in its place.
template <class T>
HWY_INLINE void SecondGradientsOfRow(const SecondTile<T>& tile, int64_t r) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.moved.score;
  const int64_t row = r * score.scores_stride;
  const bool drop = tile.dropout.kept != nullptr;
  const bool capped = score.softcap > 0;
  const auto rest = hn::Set(d, tile.rest[r]);
  const RowMean<T> w_mean = {tile.moved.mean, tile.moved.mean_low};
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    // A hidden pair gives nothing, whatever the means of its row are.
    const auto shown = ShownLanes(score, r, c);
    const auto a = hn::IfThenElseZero(shown, hn::LoadU(d, score.scores + row + c));
    const auto w = hn::IfThenElseZero(shown, FromMean<T>(hn::LoadU(d, tile.moved.tangents + row + c), w_mean, r));
    const auto d_p = hn::IfThenElseZero(shown, FromMean<T>(hn::LoadU(d, tile.d_p + row + c), tile.delta, r));
    auto h = hn::MulSub(d_p, w, rest);
    if (tile.c_values != nullptr) h = hn::Add(h, FromMean<T>(hn::LoadU(d, tile.z + row + c), tile.z_mean, r));
    const auto g = hn::Mul(a, hn::IfThenElseZero(shown, h));
    const auto d_s = hn::Mul(a, d_p);
    auto moved = hn::Mul(a, w);
    if (HWY_UNLIKELY(drop)) {
      const auto factor = DropoutFactors<T>(tile.dropout, r, c);
      moved = hn::Mul(moved, factor);
      hn::StoreU(hn::Mul(a, factor), d, score.scores + row + c);
    }
    hn::StoreU(moved, d, tile.moved.tangents + row + c);
    if (!capped) {
      hn::StoreU(g, d, tile.d_p + row + c);
      hn::StoreU(d_s, d, tile.z + row + c);
      continue;
    }
    const auto slope = hn::IfThenElseZero(shown, hn::LoadU(d, tile.slope + row + c));
    const auto bend = hn::IfThenElseZero(shown, hn::LoadU(d, tile.bend + row + c));
    hn::StoreU(hn::MulAdd(g, slope, hn::Mul(d_s, bend)), d, tile.d_p + row + c);
    hn::StoreU(hn::Mul(d_s, slope), d, tile.z + row + c);
    hn::StoreU(g, d, tile.slope + row + c);
  }
}

template <class T>
void SecondGradients(const SecondTile<T>& tile) {
  for (int64_t r = 0; r < tile.moved.score.rows; ++r) SecondGradientsOfRow<T>(tile, r);
}

/// sums[r] += weights[r, key] * keys[key].
template <class T>
HWY_INLINE void AddKeyRows(const ScoreTile<T>& score, const T* weights, const FiniteRows<T>& keys, int64_t stride,
                           T* sums) {
  if (keys.rows == nullptr) return;
  AddValues(score, score.begin, score.end, weights, keys.rows, stride, sums);
  AddNonFiniteKeys(score, keys.nonfinite, weights, sums, stride);
}

template <class T>
void SecondRowSums(const SecondTile<T>& tile) {
  const ScoreTile<T>& score = tile.moved.score;
  if (tile.g_q != nullptr) {
    AddKeyRows(score, tile.d_p, tile.k, score.q_stride, tile.g_q);
    AddKeyRows(score, tile.z, tile.c_k, score.q_stride, tile.g_q);
  }
  if (tile.g_d_out != nullptr) {
    AddKeyRows(score, tile.moved.tangents, tile.v, tile.v_stride, tile.g_d_out);
    AddKeyRows(score, score.scores, tile.c_v, tile.v_stride, tile.g_d_out);
  }
}

/// sums[key] += weights[r, key] * queries[r].
template <class T>
HWY_INLINE void AddQueryRows(const ScoreTile<T>& score, const T* weights, const FiniteRows<T>& queries, int64_t stride,
                             T* sums) {
  if (queries.rows == nullptr) return;
  Product<Into::kAdd, T>({weights + score.begin, 1, score.scores_stride, queries.rows, stride,
                          sums + score.begin * stride, stride, score.rows},
                         score.end - score.begin, stride / kLanes<T>);
  AddNonFiniteQueries(score, queries.nonfinite, weights, sums, stride);
}

template <class T>
void SecondKeySums(const SecondTile<T>& tile) {
  const ScoreTile<T>& score = tile.moved.score;
  if (tile.g_k != nullptr) {
    AddQueryRows(score, tile.d_p, tile.q, score.q_stride, tile.g_k);
    AddQueryRows(score, tile.z, tile.c_q, score.q_stride, tile.g_k);
  }
  if (tile.g_v != nullptr) AddQueryRows(score, tile.moved.tangents, tile.d_out_rows, tile.v_stride, tile.g_v);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_SECOND_INL_H_
