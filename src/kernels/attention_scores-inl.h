// SPDX-License-Identifier: Apache-2.0
// The scores of a tile, in the order of the semantics: scale, soft-cap, additive terms, masks.
//
// A problem without soft-cap and without additive terms keeps its scores unscaled and the exponential scales them: one
// pass less. Which of the two forms runs is a property of the problem, never of the tile.
#if defined(QKV_ATTENTION_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_SCORES_INL_H_
#undef QKV_ATTENTION_SCORES_INL_H_
#else
#define QKV_ATTENTION_SCORES_INL_H_
#endif

#include <cmath>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/exp-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// q . k for every pair of the tile.
template <class T>
HWY_INLINE void RawScores(const ScoreTile<T>& tile) {
  constexpr int64_t W = kPanel<T>;
  for (int64_t c = tile.begin; c < tile.end; c += W) {
    Product<Into::kSet, T>(
        {tile.q, tile.q_stride, 1, tile.keys + c * tile.D, W, tile.scores + c, tile.scores_stride, tile.D}, tile.rows,
        kTileVectors);
  }
}

/// What is visible stays above -inf, so that a row of lowest finite scores is a row like any other.
template <class T>
HWY_INLINE Vector<T> KeepVisible(Vector<T> s) {
  const Tag<T> d;
  const auto lowest = hn::Set(d, std::numeric_limits<T>::lowest());
  return hn::IfThenElse(hn::Lt(s, lowest), lowest, s);
}

/// One vector of scores from its raw products: final ones when `Finished`, else unscaled ones.
template <bool Finished, class T>
HWY_INLINE Vector<T> ScoreVector(const ScoreTile<T>& tile, int64_t r, int64_t c, Vector<T> s, Vector<T>* slope) {
  const Tag<T> d;
  if (Finished) {
    s = hn::Mul(s, hn::Set(d, tile.scale));
    if (tile.softcap > 0) {
      Vector<T> derivative;
      s = hn::Mul(Tanh<T>(hn::Mul(s, hn::Set(d, 1 / tile.softcap)), derivative), hn::Set(d, tile.softcap));
      if (slope != nullptr) *slope = derivative;
    }
  }
  if (tile.terms == nullptr) return s;
  const auto term = hn::LoadU(d, tile.terms + r * tile.terms_stride + c);
  const auto hidden = hn::Set(d, kHidden<T>);
  const auto sum = KeepVisible<T>(Finished ? hn::Add(s, term) : s);
  return hn::IfThenElse(hn::Eq(term, hidden), hidden, sum);
}

/// Turns one row of raw products into scores, hides the lanes from `end` on, and returns the largest score.
template <bool Finished, class T>
HWY_INLINE T FinishRow(const ScoreTile<T>& tile, int64_t r) {
  const Tag<T> d;
  T* HWY_RESTRICT s = tile.scores + r * tile.scores_stride;
  const auto hidden = hn::Set(d, kHidden<T>);
  auto largest = hidden;
  int64_t c = tile.begin;
  for (; c + kLanes<T> <= tile.end; c += kLanes<T>) {
    const auto x = ScoreVector<Finished, T>(tile, r, c, hn::LoadU(d, s + c), nullptr);
    if (Finished || tile.terms != nullptr) hn::StoreU(x, d, s + c);
    largest = hn::Max(largest, x);
  }
  for (; c % kPanel<T> != 0 || c < tile.end; c += kLanes<T>) {
    const auto x = ScoreVector<Finished, T>(tile, r, c, hn::LoadU(d, s + c), nullptr);
    const auto shown = hn::IfThenElse(FirstLanes(d, tile.end - c), x, hidden);
    hn::StoreU(shown, d, s + c);
    largest = hn::Max(largest, shown);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// Scores below every finite number although visible: products that overflowed. They become the lowest number, so that
/// the row keeps a distribution.
template <class T>
HWY_NOINLINE void RaiseRow(const ScoreTile<T>& tile, int64_t r) {
  T* s = tile.scores + r * tile.scores_stride;
  for (int64_t c = tile.begin; c < tile.end; ++c) {
    if (s[c] == kHidden<T>) s[c] = std::numeric_limits<T>::lowest();
  }
}

template <class T>
void ScoresOfTile(const ScoreTile<T>& tile) {
  RawScores(tile);
  for (int64_t r = 0; r < tile.rows; ++r) FinishRow<true, T>(tile, r);
}

/// Keep factors r of dropout for one vector of columns starting at key position `key`.
template <class T>
HWY_INLINE Vector<T> DropoutFactors(const TileDropout<T>& dropout, int64_t row, int64_t column) {
  const Tag<T> d;
  const hn::Rebind<uint32_t, Tag<T>> du;
  const hn::RebindToSigned<decltype(du)> di;
  const uint64_t row_key = dropout.row_keys[row];
  const auto key = static_cast<uint64_t>(dropout.first_key + column);
  const auto mix = [](auto x) HWY_ATTR {
    const hn::Rebind<uint32_t, Tag<T>> lanes;
    x = hn::Mul(x, hn::Set(lanes, 0x21F0AAADu));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    return hn::Mul(x, hn::Set(lanes, 0x735A2D97u));
  };
  auto x = hn::Xor(hn::Iota(du, static_cast<uint32_t>(key)), hn::Set(du, static_cast<uint32_t>(row_key)));
  x = hn::Add(x, hn::Set(du, static_cast<uint32_t>(key >> 32) * 0x9E3779B9u));
  x = mix(hn::Xor(x, hn::ShiftRight<16>(x)));
  x = hn::Xor(x, hn::Set(du, static_cast<uint32_t>(row_key >> 32)));
  x = mix(hn::Xor(x, hn::ShiftRight<15>(x)));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  // Unsigned x < threshold as a signed comparison.
  const auto flip = hn::Set(du, 0x80000000u);
  const auto dropped =
      hn::Lt(hn::BitCast(di, hn::Xor(x, flip)), hn::BitCast(di, hn::Xor(hn::Set(du, dropout.threshold), flip)));
  const auto keep = hn::Set(d, dropout.keep);
  if constexpr (sizeof(T) == sizeof(float)) {
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), keep);
  } else {
    const hn::RebindToSigned<Tag<T>> dw;
    const auto wide = hn::PromoteTo(dw, hn::VecFromMask(di, dropped));
    return hn::IfThenZeroElse(hn::RebindMask(d, hn::MaskFromVec(wide)), keep);
  }
}

/// Adds the share of one NaN or infinite element of a streamed operand to a row of sums, where the pair is visible.
template <class T>
HWY_INLINE void AddNonFiniteRow(const NonFiniteRows& items, int64_t n, T weight, T* HWY_RESTRICT sums) {
  const StoredRows& source = items.source;
  for (int64_t c = 0; c < source.columns; ++c) {
    const int64_t element = items.rows[n] * source.row_stride + c * source.column_stride;
    const T value = load_as<T>(source.dtype, static_cast<const char*>(source.data) + element * size_of(source.dtype));
    if (!std::isfinite(value)) sums[c] += weight * value;
  }
}

template <class T>
HWY_INLINE bool PairVisible(const ScoreTile<T>& tile, int64_t r, int64_t c) {
  return tile.terms == nullptr || tile.terms[r * tile.terms_stride + c] != kHidden<T>;
}

/// sums[r] += weights[r, key] * streamed[key] for the listed keys.
template <class T>
HWY_NOINLINE void AddNonFiniteKeys(const ScoreTile<T>& tile, const NonFiniteRows& items, const T* weights, T* sums,
                                   int64_t sums_stride) {
  for (int64_t n = 0; n < items.count; ++n) {
    const int64_t key = items.rows[n];
    if (key < tile.begin || key >= tile.end) continue;
    for (int64_t r = 0; r < tile.rows; ++r) {
      if (!PairVisible(tile, r, key)) continue;
      AddNonFiniteRow(items, n, weights[r * tile.scores_stride + key], sums + r * sums_stride);
    }
  }
}

/// sums[key] += weights[query, key] * streamed[query] for the listed queries.
template <class T>
HWY_NOINLINE void AddNonFiniteQueries(const ScoreTile<T>& tile, const NonFiniteRows& items, const T* weights, T* sums,
                                      int64_t sums_stride) {
  for (int64_t n = 0; n < items.count; ++n) {
    const int64_t r = items.rows[n];
    for (int64_t key = tile.begin; key < tile.end; ++key) {
      if (!PairVisible(tile, r, key)) continue;
      AddNonFiniteRow(items, n, weights[r * tile.scores_stride + key], sums + key * sums_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_SCORES_INL_H_
