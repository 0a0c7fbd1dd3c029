// SPDX-License-Identifier: Apache-2.0
// Products of few rows with vectors whose elements are contiguous (keys, or columns of a matrix): as many of them as
// there are lanes, by the elements that fill a vector, are a square that is transposed in registers. Lanes then run
// along the vectors as in packed panels, and every sum runs in the order of Product.
#if defined(QKV_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_SQUARES_INL_H_
#undef QKV_SQUARES_INL_H_
#else
#define QKV_SQUARES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/read_ahead-inl.h"
#include "kernels/stored-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Rows that share a transposed square: it takes 16 of 32 registers, or 4 to 8 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int kSquareRows = 8;
#else
constexpr int kSquareRows = 4;
#endif

/// Calls f.template operator()<R>(r0) for runs of R rows that cover [0, rows), each at most kSquareRows.
template <int R, class F>
HWY_INLINE void CallWithRows(int64_t rows, int64_t r0, const F& f) {
  if constexpr (R == 1) {
    f.template operator()<1>(r0);
  } else if (rows == R) {
    f.template operator()<R>(r0);
  } else {
    CallWithRows<R - 1>(rows, r0, f);
  }
}
template <class F>
HWY_INLINE void ForRowRuns(int64_t rows, const F& f) {
  for (int64_t r0 = 0; r0 < rows;) {
    const int64_t runs = (rows - r0 + kSquareRows - 1) / kSquareRows;
    const int64_t run = (rows - r0 + runs - 1) / runs;
    CallWithRows<kSquareRows>(run, r0, f);
    r0 += run;
  }
}

/// Multiplies R rows with the columns [column, column + count) of a transposed square. `q` points at `column` of row 0.
template <int R, class Stored, class T, int Part>
HWY_INLINE void AddColumns(const ScoreTile<T>& tile, const T* HWY_RESTRICT q, const Vector<T> (&square)[kLanes<T>],
                           Vector<T> (&sum)[R]) {
  const Tag<T> d;
#pragma GCC unroll 16
  for (int j = 0; j < kLanes<T>; ++j) {
    const auto low = Stored::template part<0>(square[j]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = hn::MulAdd(hn::Set(d, q[r * tile.q_stride + j * Part]), low, sum[r]);
    if constexpr (Part == 2) {
      const auto high = Stored::template part<1>(square[j]);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = hn::MulAdd(hn::Set(d, q[r * tile.q_stride + j * Part + 1]), high, sum[r]);
    }
  }
}

/// The columns from `column` on, fewer than fill a square.
template <int R, class Stored, class T>
HWY_NOINLINE void AddLastColumns(const ScoreTile<T>& tile, const T* q, int64_t column,
                                 const typename Stored::Element* const* keys, T* sums) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  using Element = typename Stored::Element;
  HWY_ALIGN T words[N * N] = {};
  for (int64_t l = 0; l < N; ++l) {
    std::memcpy(words + l * N, keys[l] + column, static_cast<size_t>(tile.D - column) * sizeof(Element));
  }
  Vector<T> square[N];
  for (int64_t l = 0; l < N; ++l) square[l] = hn::Load(d, words + l * N);
  TransposeSquare<T>(square);
  for (int64_t l = 0; l < N; ++l) hn::Store(square[l], d, words + l * N);
  for (int r = 0; r < R; ++r) {
    auto sum = hn::Load(d, sums + r * N);
    for (int64_t c = column; c < tile.D; ++c) {
      const int64_t n = c - column;
      const auto word = hn::Load(d, words + n / Stored::kParts * N);
      const auto key =
          n % Stored::kParts == 0 ? Stored::template part<0>(word) : Stored::template part<Stored::kParts - 1>(word);
      sum = hn::MulAdd(hn::Set(d, q[r * tile.q_stride + c]), key, sum);
    }
    hn::Store(sum, d, sums + r * N);
  }
}

/// Raw scores of R rows from row r0 against one vector of keys, in column c.
template <int R, class Stored, class T, class Ahead>
HWY_INLINE void ScoresOfSquares(const ScoreTile<T>& tile, int64_t r0, int64_t c,
                                const typename Stored::Element* const* keys, Ahead& next) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  constexpr int64_t kColumns = N * Stored::kParts;
  constexpr int64_t kSquareLines = LinesOf(N * N * static_cast<int64_t>(sizeof(T)));
  const T* q = tile.q + r0 * tile.q_stride;
  Vector<T> sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  int64_t column = 0;
  for (; column + kColumns <= tile.D; column += kColumns) {
    if (r0 == 0) next.template Load<kSquareLines>();
    Vector<T> square[N];
#pragma GCC unroll 16
    for (int64_t l = 0; l < N; ++l) {
      square[l] = hn::LoadU(d, reinterpret_cast<const T*>(keys[l] + column));
      next.Ask(keys[l] + column);
    }
    TransposeSquare<T>(square);
    AddColumns<R, Stored, T, Stored::kParts>(tile, q + column, square, sum);
  }
  if (HWY_UNLIKELY(column < tile.D)) {
    if (r0 == 0) next.Load(LinesOf(N * (tile.D - column) * static_cast<int64_t>(sizeof(typename Stored::Element))));
    HWY_ALIGN T sums[R * N];
    for (int r = 0; r < R; ++r) hn::Store(sum[r], d, sums + r * N);
    AddLastColumns<R, Stored, T>(tile, q, column, keys, sums);
    for (int r = 0; r < R; ++r) sum[r] = hn::Load(d, sums + r * N);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) hn::StoreU(sum[r], d, tile.scores + (r0 + r) * tile.scores_stride + c);
}

template <class Stored, class T, class Ahead>
struct ScoreRun {
  const ScoreTile<T>& tile;
  const typename Stored::Element* const* keys;
  int64_t c;
  Ahead& next;
  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    ScoresOfSquares<R, Stored, T>(tile, r0, c, keys, next);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_SQUARES_INL_H_
