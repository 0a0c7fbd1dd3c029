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

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/bits-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T, class E>
constexpr bool kInPairs = !std::is_same_v<T, E>;
/// Inner elements in one E.
template <class T, class E>
constexpr int64_t kElements = kInPairs<T, E> ? 2 : 1;

/// True when no row sees the column, nor any other of its word.
template <class T, class E>
HWY_INLINE bool IsBlank(const ScoreTile<T, E>& tile, int64_t c) {
  return (tile.blank_words >> (static_cast<uint64_t>(c) / kWordBits) & 1) != 0;
}

/// rows . columns for the pairs of the tile, columns packed in panels of `depth` steps; of the last panel only the
/// vectors that reach below `end`. Blank columns keep what is there.
template <class T, class E>
HWY_INLINE void PanelProducts(const ScoreTile<T, E>& tile, const E* rows, int64_t rows_stride, const E* panels,
                              int64_t depth, T* products) {
  constexpr int64_t W = kPanel<T>;
  static_assert(kWordBits % W == 0);
  for (int64_t c = tile.begin; c < tile.end; c += W) {
    if (IsBlank(tile, c)) continue;
    const int64_t vectors = std::min<int64_t>(kTileVectors, (tile.end - c + kLanes<T> - 1) / kLanes<T>);
    Product<Into::kSet, T, E>({rows, rows_stride, 1, panels + c * depth, W, products + c, tile.scores_stride, depth},
                              tile.rows, vectors);
  }
}

/// q . k for every pair of the tile.
template <class T, class E>
HWY_INLINE void RawScores(const ScoreTile<T, E>& tile) {
  PanelProducts(tile, tile.q, tile.q_stride, tile.keys, tile.D, tile.scores);
}

/// Scores that fell below the range of finite numbers, brought back to its edge.
template <class T>
HWY_INLINE Vector<T> Raised(Vector<T> s) {
  const Tag<T> d;
  const auto lowest = hn::Set(d, std::numeric_limits<T>::lowest());
  return hn::IfThenElse(hn::Lt(s, lowest), lowest, s);
}

/// True where some row may not see a column, or another of its vector.
template <class T, class E>
HWY_INLINE bool HasHidden(const ScoreTile<T, E>& tile, int64_t c) {
  return tile.visible != nullptr && (c < tile.shared_begin || c >= tile.shared_end);
}

/// The lanes of a vector of columns that the row sees, none beyond the last column.
template <class T, class E>
HWY_INLINE hn::Mask<Tag<T>> ShownLanes(const ScoreTile<T, E>& tile, int64_t r, int64_t c) {
  const auto inside = FirstLanes(Tag<T>(), tile.end - c);
  if (!HasHidden(tile, c)) return inside;
  return hn::And(inside, LanesOfBits<T>(tile.visible + r * tile.visible_stride, c));
}

/// One vector of scores from its raw products, hidden ones included: final when `Finished`, else unscaled.
template <bool Finished, class T, class E>
HWY_INLINE Vector<T> ScoreVector(const ScoreTile<T, E>& tile, int64_t r, int64_t c, Vector<T> s, Vector<T>* slope) {
  const Tag<T> d;
  if (Finished) {
    s = hn::Mul(s, hn::Set(d, tile.scale));
    if (tile.softcap > 0) {
      Vector<T> derivative;
      s = hn::Mul(Tanh<T>(hn::Mul(s, hn::Set(d, 1 / tile.softcap)), derivative), hn::Set(d, tile.softcap));
      if (slope != nullptr) *slope = derivative;
    }
    if (tile.terms != nullptr) s = hn::Add(s, hn::LoadU(d, tile.terms + r * tile.terms_stride + c));
  }
  return s;
}

/// Turns one row of raw products into scores, hides what the row does not see and the lanes from `end` on, and returns
/// the largest score.
template <bool Finished, class T, class E>
HWY_INLINE T FinishRow(const ScoreTile<T, E>& tile, int64_t r) {
  const Tag<T> d;
  T* HWY_RESTRICT s = tile.scores + r * tile.scores_stride;
  const auto hidden = hn::Set(d, kHidden<T>);
  auto largest = hidden;
  int64_t c = tile.begin;
  for (; c + kLanes<T> <= tile.end; c += kLanes<T>) {
    auto x = ScoreVector<Finished, T>(tile, r, c, hn::LoadU(d, s + c), nullptr);
    const bool has_hidden = HasHidden(tile, c);
    if (has_hidden) x = hn::IfThenElse(LanesOfBits<T>(tile.visible + r * tile.visible_stride, c), x, hidden);
    if (Finished || has_hidden) hn::StoreU(x, d, s + c);
    largest = hn::Max(largest, x);
  }
  if (c < tile.end) {
    const auto x = ScoreVector<Finished, T>(tile, r, c, hn::LoadU(d, s + c), nullptr);
    const auto shown = hn::IfThenElse(ShownLanes(tile, r, c), x, hidden);
    hn::StoreU(shown, d, s + c);
    largest = hn::Max(largest, shown);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

/// For a row whose scores are the lowest number at most: those below it although visible are products or sums that
/// overflowed. They become the lowest number, so that the row keeps a distribution. (In a row with larger scores their
/// weight is 0 either way.) Returns the row's largest score then, -inf of an empty one.
template <class T, class E>
HWY_NOINLINE T RaiseRow(const ScoreTile<T, E>& tile, int64_t r) {
  const Tag<T> d;
  T* s = tile.scores + r * tile.scores_stride;
  const auto hidden = hn::Set(d, kHidden<T>);
  auto largest = hidden;
  for (int64_t c = tile.begin; c < tile.end; c += kLanes<T>) {
    const auto shown = ShownLanes(tile, r, c);
    hn::StoreU(hn::IfThenElse(shown, Raised<T>(hn::LoadU(d, s + c)), hidden), d, s + c);
    largest = hn::IfThenElse(shown, hn::Set(d, std::numeric_limits<T>::lowest()), largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <class T, class E>
void ScoresOfTile(const ScoreTile<T, E>& tile) {
  RawScores(tile);
  for (int64_t r = 0; r < tile.rows; ++r) {
    FinishRow<true, T>(tile, r);
    RaiseRow<T>(tile, r);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_SCORES_INL_H_
