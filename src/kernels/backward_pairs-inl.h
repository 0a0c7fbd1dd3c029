// SPDX-License-Identifier: Apache-2.0
// What a backward tile does otherwise where its operands are pairs of bf16: rows go in twos, and r P and dC are rounded
// on their way into the products.
#if defined(QKV_BACKWARD_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_BACKWARD_PAIRS_INL_H_
#undef QKV_BACKWARD_PAIRS_INL_H_
#else
#define QKV_BACKWARD_PAIRS_INL_H_
#endif

#include "kernels/attention_backward-inl.h"
#include "kernels/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

using PairTile = BackwardTile<float, BFloat16Pair>;

/// Rows r and, where there is one, r + 1, two vectors of columns at a time.
template <bool HasSecond>
HWY_INLINE void RoundTwoRows(const PairTile& tile, int64_t r, const Delta<float>* delta) {
  constexpr int64_t N = kLanes<float>;
  const ScoreTile<float, BFloat16Pair>& score = tile.score;
  const auto zero = hn::Zero(Tag<float>());
  const int64_t pair_row = r / 2 * score.scores_stride;
  for (int64_t c = score.begin; c < score.end; c += 2 * N) {
    Gradients<float> x[2][2] = {{{zero, zero}, {zero, zero}}, {{zero, zero}, {zero, zero}}};
    const bool has_right = c + N < score.end;
    for (int64_t n = 0; n < (HasSecond ? 2 : 1); ++n) {
      x[n][0] = GradientsOfVector<float>(tile, r + n, c, delta[n]);
      if (has_right) x[n][1] = GradientsOfVector<float>(tile, r + n, c + N, delta[n]);
      for (Gradients<float>& vector : x[n]) vector.d_inner = ClampToBFloat16(vector.d_inner);
      const int64_t key_pairs = ((r + n) * score.scores_stride + c) / 2;
      StorePairs(RoundToPairs(x[n][0].d_inner, x[n][1].d_inner), tile.d_inner_by_row + key_pairs);
    }
    for (int64_t n = 0; n < (has_right ? 2 : 1); ++n) {
      const int64_t at = pair_row + c + n * N;
      StorePairs(RoundToRowPairs(x[0][n].weight, x[1][n].weight), tile.weights_by_key + at);
      StorePairs(RoundToRowPairs(x[0][n].d_inner, x[1][n].d_inner), tile.d_inner_by_key + at);
    }
  }
}

/// The row's part of d_scale. Rounded operands of dQ are not good enough for it: terms of either sign nearly cancel.
HWY_INLINE float ScaleSumOfRow(const PairTile& tile, int64_t r) {
  const Tag<float> d;
  const float* HWY_RESTRICT d_inner = InnerGradients(tile) + r * tile.score.scores_stride;
  const float* HWY_RESTRICT product = tile.products + r * tile.score.scores_stride;
  auto sum = hn::Zero(d);
  for (int64_t c = tile.score.begin; c < tile.score.end; c += kLanes<float>) {
    const auto dc = hn::LoadU(d, d_inner + c);
    // The product of a hidden pair may be NaN.
    const auto share = hn::Mul(dc, hn::LoadU(d, product + c));
    sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(dc, hn::Zero(d)), share));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <>
struct BackwardSteps<float, BFloat16Pair> {
  template <bool Finished>
  static HWY_INLINE void GradientsOfRows(const PairTile& tile) {
    for (int64_t r = 0; r < tile.score.rows; r += 2) {
      Delta<float> delta[2] = {WeightsAndDelta<Finished, float>(tile, r), {}};
      if (r + 1 < tile.score.rows) {
        delta[1] = WeightsAndDelta<Finished, float>(tile, r + 1);
        RoundTwoRows<true>(tile, r, delta);
      } else {
        RoundTwoRows<false>(tile, r, delta);
      }
    }
    if (tile.products == nullptr) return;
    for (int64_t r = 0; r < tile.score.rows; ++r) tile.scale_sums[r] = ScaleSumOfRow(tile, r);
  }
  /// sums[key] += sum over pairs of queries of weights[pair, key] * streamed[pair].
  static HWY_INLINE void KeySums(const PairTile& tile, const BFloat16Pair* weights, const BFloat16Pair* streamed,
                                 int64_t width, float* sums) {
    const ScoreTile<float, BFloat16Pair>& score = tile.score;
    Product<Into::kAdd, float, BFloat16Pair>({weights + score.begin, 1, score.scores_stride, streamed, width,
                                              sums + score.begin * width, width, (score.rows + 1) / 2},
                                             score.end - score.begin, width / kLanes<float>);
  }
  static HWY_INLINE void AddValueGradients(const PairTile& tile) {
    KeySums(tile, tile.weights_by_key, tile.d_out_streamed, tile.v_width, tile.d_v);
  }
  static HWY_INLINE void AddKeyGradients(const PairTile& tile) {
    KeySums(tile, tile.d_inner_by_key, tile.q_streamed, tile.q_width, tile.d_k);
  }
  static HWY_INLINE void AddQueryGradients(const PairTile& tile) {
    const ScoreTile<float, BFloat16Pair>& score = tile.score;
    Product<Into::kAdd, float, BFloat16Pair>({tile.d_inner_by_row + score.begin / 2, score.scores_stride / 2, 1,
                                              tile.k_streamed + score.begin / 2 * tile.q_width, tile.q_width, tile.d_q,
                                              tile.q_width, (score.end - score.begin + 1) / 2},
                                             score.rows, tile.q_width / kLanes<float>);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_BACKWARD_PAIRS_INL_H_
