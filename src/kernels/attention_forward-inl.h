// SPDX-License-Identifier: Apache-2.0
// One forward tile: some queries against one key block.
//
//   s = scores, m = max s, p = exp(s - m), l = sum p, O = (r p) v        the block's triple, from zero
//   (m, l, O) of the row merges with it: both are brought to the larger maximum and added
//
// Operations per pair: 2 D for the score, 2 Dv for the output, one exponential (about 12 instructions per vector). The
// packed keys and values of the block stay in L2, one panel of them and the queries in L1.
// Sums over keys run in key order: p in lanes by position, then across lanes; O in chunks of kChunk keys.
#if defined(QKV_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_FORWARD_INL_H_
#undef QKV_ATTENTION_FORWARD_INL_H_
#else
#define QKV_ATTENTION_FORWARD_INL_H_
#endif

#include <algorithm>

#include "kernels/attention_scores-inl.h"
#include "kernels/dropout-inl.h"
#include "kernels/merge-inl.h"
#include "kernels/nonfinite-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Keys whose share of an output is summed in registers before it is added. Chunks count from the block's key 0. 128
/// value rows of 64 floats fill L1.
constexpr int64_t kChunk = 128;

/// Exponentials of one row relative to `m`, in place; returns their sum. With dropout, r p is stored.
template <class T>
HWY_INLINE T ExponentialsOfRow(const ForwardTile<T>& tile, int64_t r, T scale, T m) {
  const Tag<T> d;
  const ScoreTile<T>& score = tile.score;
  T* HWY_RESTRICT s = score.scores + r * score.scores_stride;
  const auto scales = hn::Set(d, scale);
  const auto shift = hn::Set(d, m == kHidden<T> ? T{0} : m);
  auto sum = hn::Zero(d);
  const bool drop = tile.dropout.kept != nullptr;
  for (int64_t c = score.begin; c < score.end; c += kLanes<T>) {
    auto p = ExpNonPositive<T>(hn::Sub(hn::Mul(hn::LoadU(d, s + c), scales), shift));
    sum = hn::Add(sum, p);
    if (HWY_UNLIKELY(drop)) p = hn::Mul(p, DropoutFactors<T>(tile.dropout, r, c));
    hn::StoreU(p, d, s + c);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// block_out = p v over the visible columns, chunk by chunk.
template <class T>
HWY_INLINE void OutputsOfBlock(const ForwardTile<T>& tile) {
  const ScoreTile<T>& score = tile.score;
  const int64_t vectors = tile.v_stride / kLanes<T>;
  for (int64_t c = score.begin; c < score.end;) {
    const int64_t next = std::min(score.end, (c / kChunk + 1) * kChunk);
    const ProductOperands<T> product = {
        score.scores + c, score.scores_stride, 1,       tile.v + c * tile.v_stride, tile.v_stride,
        tile.block_out,   tile.v_stride,       next - c};
    if (c == score.begin) {
      Product<Into::kSet, T>(product, score.rows, vectors);
    } else {
      Product<Into::kAdd, T>(product, score.rows, vectors);
    }
    c = next;
  }
  AddNonFiniteKeys(score, tile.v_nonfinite, score.scores, tile.block_out, tile.v_stride);
}

template <bool Finished, class T>
HWY_INLINE void ForwardRows(const ForwardTile<T>& tile, T* block_m, T* block_l) {
  const ScoreTile<T>& score = tile.score;
  for (int64_t r = 0; r < score.rows; ++r) {
    T largest = FinishRow<Finished, T>(score, r);
    if (HWY_UNLIKELY(largest <= std::numeric_limits<T>::lowest())) largest = RaiseRow<T>(score, r);
    const T scale = Finished ? T{1} : score.scale;
    block_m[r] = largest == kHidden<T> ? largest : largest * scale;
    block_l[r] = ExponentialsOfRow<T>(tile, r, scale, block_m[r]);
  }
}

/// Rows of one tile at most; the caller's row blocks keep to it.
constexpr int64_t kMaxTileRows = 64;

/// The maxima and sums of the block, and its weights in place of the raw products.
template <class T>
HWY_INLINE void WeightsOfTile(const ForwardTile<T>& tile, T* block_m, T* block_l) {
  if (tile.score.finished) {
    ForwardRows<true, T>(tile, block_m, block_l);
  } else {
    ForwardRows<false, T>(tile, block_m, block_l);
  }
}

template <class T>
void ForwardOfTile(const ForwardTile<T>& tile) {
  HWY_ALIGN T block_m[kMaxTileRows];
  HWY_ALIGN T block_l[kMaxTileRows];
  RawScores(tile.score);
  WeightsOfTile(tile, block_m, block_l);
  OutputsOfBlock(tile);
  const Triples<T> into = {tile.m, tile.l, tile.out, tile.v_stride};
  for (int64_t r = 0; r < tile.score.rows; ++r) {
    MergeRow<T>(into, r, block_m[r], block_l[r], tile.block_out + r * tile.v_stride);
  }
}

/// The same, not merged.
template <class T>
void ForwardOfBlock(const ForwardTile<T>& tile) {
  RawScores(tile.score);
  WeightsOfTile(tile, tile.m, tile.l);
  OutputsOfBlock(tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_FORWARD_INL_H_
