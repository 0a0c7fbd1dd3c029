// SPDX-License-Identifier: Apache-2.0
// The scores of a tile for the forward pass: only the vectors of columns that a register tile of rows sees,
// with the largest and smallest score of each row in lanes by position.
#if defined(QKV_FORWARD_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_FORWARD_SCORES_INL_H_
#undef QKV_FORWARD_SCORES_INL_H_
#else
#define QKV_FORWARD_SCORES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Columns [begin, end) of a block.
struct ColumnSpan {
  int64_t begin;
  int64_t end;
};

/// Bits of the columns [word, word + 64) that row r sees, `word` a multiple of 64.
template <class T, class E>
HWY_INLINE uint64_t ShownWord(const ScoreTile<T, E>& tile, int64_t r, int64_t word) {
  uint64_t shown = ~uint64_t{0};
  if (tile.visible != nullptr) shown = tile.visible[r * tile.visible_stride + word / kWordBits];
  if (word < tile.begin) shown = shown >> (tile.begin - word) << (tile.begin - word);
  const int64_t left = tile.end - word;
  return left >= kWordBits ? shown : shown & ((uint64_t{1} << left) - 1);
}

template <class T>
constexpr uint64_t kAllLanes = kLanes<T> == 64 ? ~uint64_t{0} : (uint64_t{1} << kLanes<T>)-1;

/// The bits of one vector of columns, which starts at bit `c` of a word.
template <class T>
HWY_INLINE uint64_t LanesOfWord(uint64_t word, int64_t c) {
  return word >> c & kAllLanes<T>;
}
template <class T>
HWY_INLINE hn::Mask<Tag<T>> MaskOfLanes(uint64_t lanes) {
  return LanesOfBits<T>(&lanes, 0);
}

/// Rows [r, r + rows) of a tile, with their scores.
template <class T, class E>
HWY_INLINE ScoreTile<T, E> RowsOfTile(const ScoreTile<T, E>& tile, int64_t r, int64_t rows) {
  ScoreTile<T, E> part = tile;
  part.rows = rows;
  part.q += r * tile.q_stride;
  part.scores += r * tile.scores_stride;
  if (tile.terms != nullptr) part.terms += r * tile.terms_stride;
  if (tile.visible != nullptr) part.visible += r * tile.visible_stride;
  return part;
}

/// A product of all rows in one register tile.
template <class T, class E, class Finish>
HWY_NOINLINE void ProductOfRows(const ProductOperands<T, E>& p, int64_t rows, int64_t vectors, const Finish& finish) {
  ProductInto(p, rows, vectors, finish);
}

/// Stores the sums of a row and, where all of them are visible scores, takes them into its largest and smallest.
template <class T>
struct StoreScores {
  T* scores;  ///< of row 0, at the product's first vector
  int64_t scores_stride;
  T* largest;  ///< [rows, lanes]
  T* smallest;
  bool compare;

  template <int V>
  HWY_INLINE void operator()(int64_t r, int64_t first, const Vector<T> (&sum)[V]) const {
    const Tag<T> d;
    constexpr int64_t N = kLanes<T>;
    T* HWY_RESTRICT to = scores + r * scores_stride + first * N;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) hn::StoreU(sum[v], d, to + v * N);
    if (!compare) return;
    auto high = hn::Load(d, largest + r * N);
    auto low = hn::Load(d, smallest + r * N);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      high = hn::Max(high, sum[v]);
      low = hn::Min(low, sum[v]);
    }
    hn::Store(high, d, largest + r * N);
    hn::Store(low, d, smallest + r * N);
  }
};

/// Scores of row r from its raw products on the columns [begin, end), whole vectors, with the largest and smallest of
/// what it sees. Hidden scores stay as they are.
template <bool Finished, class T, class E>
HWY_INLINE void FinishScores(const ScoreTile<T, E>& tile, int64_t r, ColumnSpan columns, T* HWY_RESTRICT largest,
                             T* HWY_RESTRICT smallest) {
  const Tag<T> d;
  T* HWY_RESTRICT s = tile.scores + r * tile.scores_stride;
  auto high = hn::Load(d, largest + r * kLanes<T>);
  auto low = hn::Load(d, smallest + r * kLanes<T>);
  for (int64_t c = columns.begin; c < columns.end; c += kLanes<T>) {
    const uint64_t lanes = LanesOfWord<T>(ShownWord(tile, r, c / kWordBits * kWordBits), c % kWordBits);
    if (lanes == 0) continue;
    const auto shown = MaskOfLanes<T>(lanes);
    const auto x = ScoreVector<Finished, T>(tile, r, c, hn::LoadU(d, s + c), nullptr);
    if (Finished) hn::StoreU(x, d, s + c);
    high = hn::Max(high, hn::IfThenElse(shown, x, hn::Set(d, kHidden<T>)));
    low = hn::Min(low, hn::IfThenElse(shown, x, hn::Set(d, -kHidden<T>)));
  }
  hn::Store(high, d, largest + r * kLanes<T>);
  hn::Store(low, d, smallest + r * kLanes<T>);
}

/// What the rows of a register tile see of one panel.
struct PanelView {
  uint64_t any;  ///< bits of the columns that one of them sees
  uint64_t all;  ///< that all of them see
};

/// Of the panel that begins at column c; panels do not cross words.
template <class T, class E>
HWY_INLINE PanelView LookAtPanel(const ScoreTile<T, E>& tile, int64_t c) {
  static_assert(kWordBits % kPanel<T> == 0);
  const int64_t word = c / kWordBits * kWordBits;
  PanelView view = {0, ~uint64_t{0}};
  for (int64_t r = 0; r < tile.rows; ++r) {
    const uint64_t shown = ShownWord(tile, r, word);
    view.any |= shown;
    view.all &= shown;
    if (tile.visible == nullptr) break;
  }
  constexpr uint64_t kBits = kPanel<T> == kWordBits ? ~uint64_t{0} : (uint64_t{1} << kPanel<T> % kWordBits) - 1;
  return {view.any >> (c - word) & kBits, view.all >> (c - word) & kBits};
}

/// Where comparisons of a tile's rows begin.
template <class T>
HWY_INLINE void ClearExtremes(int64_t rows, T* HWY_RESTRICT largest, T* HWY_RESTRICT smallest) {
  const Tag<T> d;
  for (int64_t r = 0; r < rows; ++r) {
    hn::Store(hn::Set(d, kHidden<T>), d, largest + r * kLanes<T>);
    hn::Store(hn::Set(d, -kHidden<T>), d, smallest + r * kLanes<T>);
  }
}

/// Scores of the rows of one register tile; returns the columns that one of them sees. With kRaw their products stand
/// there already.
template <bool kRaw, class T, class E>
HWY_INLINE ColumnSpan ScoresOfRows(const ScoreTile<T, E>& tile, T* largest, T* smallest) {
  constexpr int64_t W = kPanel<T>;
  constexpr int64_t N = kLanes<T>;
  ClearExtremes(tile.rows, largest, smallest);
  ColumnSpan span = {0, 0};
  for (int64_t c = tile.begin; c < tile.end; c += W) {
    const PanelView view = LookAtPanel(tile, c);
    if (view.any == 0) continue;
    if (span.end == 0) span.begin = c + std::countr_zero(view.any);
    span.end = c + std::bit_width(view.any);
    const int64_t first = std::countr_zero(view.any) / N * N;
    const int64_t last = (std::bit_width(view.any) + N - 1) / N * N;
    if constexpr (!kRaw) {
      const bool plain = !tile.finished && std::popcount(view.all >> first) == last - first;
      const ProductOperands<T, E> product = {tile.q, tile.q_stride, 1, tile.keys + c * tile.D + first,
                                             W,      nullptr,       0, tile.D};
      const StoreScores<T> store = {tile.scores + c + first, tile.scores_stride, largest, smallest, plain};
      ProductOfRows(product, tile.rows, (last - first) / N, store);
      if (HWY_LIKELY(plain)) continue;
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      if (tile.finished) {
        FinishScores<true>(tile, r, {c + first, c + last}, largest, smallest);
      } else {
        FinishScores<false>(tile, r, {c + first, c + last}, largest, smallest);
      }
    }
  }
  return span;
}

struct DoNothing {
  void operator()() const {}
};

/// The same for all rows of a tile; one span per register tile. `between()` is called after each of those.
template <bool kRaw, class T, class E, class Between = DoNothing>
HWY_INLINE void ScoresOfTileRows(const ScoreTile<T, E>& tile, T* largest, T* smallest, ColumnSpan* spans,
                                 const Between& between = {}) {
  for (int64_t r = 0; r < tile.rows; r += kTileRows) {
    const ScoreTile<T, E> part = RowsOfTile(tile, r, std::min<int64_t>(kTileRows, tile.rows - r));
    spans[r / kTileRows] = ScoresOfRows<kRaw>(part, largest + r * kLanes<T>, smallest + r * kLanes<T>);
    between();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_FORWARD_SCORES_INL_H_
