// SPDX-License-Identifier: Apache-2.0
// A forward tile of few rows: keys and values stream from where they are stored, once, and are not packed.
//
// Keys: a square of as many keys as there are lanes, by the columns that fill a vector, is transposed in registers; its
// vectors then have lanes along keys, as packed panels have. Values: lanes along the width, as they lie. Every sum runs
// in the order of attention_forward-inl.h, so the bits are those of a row among many.
//
// Per byte of f32 keys and for 4 rows: 1/16 load, 5/16 shuffle, 4/16 multiply-add instructions of 16 lanes; a core that
// does one of the latter and one shuffle a cycle reads some 10 bytes a cycle where memory gives 6.
#if defined(QKV_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_DECODE_INL_H_
#undef QKV_ATTENTION_DECODE_INL_H_
#else
#define QKV_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/attention_forward-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/panels-inl.h"
#include "kernels/stored-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Lines are asked for this many bytes of rows before they are used, and go to L2: measured on Zen 4, asking L1 reaches
/// half of the bandwidth (it has few outstanding misses), asking nobody a third.
constexpr int64_t kAheadBytes = 24 * 1024;
/// The distance in bytes, a whole number of rows. Unsigned, as addresses that may lie outside of any tensor.
HWY_INLINE uint64_t BytesAhead(const StoredRows& rows) {
  const int64_t row_bytes = std::max<int64_t>(1, rows.columns * size_of(rows.dtype));
  const int64_t ahead = std::max<int64_t>(1, kAheadBytes / row_bytes) * size_of(rows.dtype);
  return static_cast<uint64_t>(ahead) * static_cast<uint64_t>(rows.row_stride);
}
HWY_INLINE void AskFor(const void* now, uint64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(now) + ahead), 0, 2);
}

/// Value rows of one pass over the width: they stay in L1.
constexpr int64_t kValueRows = 32;

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

/// Raw scores of R rows from row r0 against one vector of keys, in column c. `ahead` leads to the lines asked for.
template <int R, class Stored, class T>
HWY_INLINE void ScoresOfSquares(const ScoreTile<T>& tile, int64_t r0, int64_t c,
                                const typename Stored::Element* const* keys, uint64_t ahead) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  constexpr int64_t kColumns = N * Stored::kParts;
  const T* q = tile.q + r0 * tile.q_stride;
  Vector<T> sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  int64_t column = 0;
  for (; column + kColumns <= tile.D; column += kColumns) {
    Vector<T> square[N];
#pragma GCC unroll 16
    for (int64_t l = 0; l < N; ++l) {
      square[l] = hn::LoadU(d, reinterpret_cast<const T*>(keys[l] + column));
      AskFor(keys[l] + column, ahead);
    }
    TransposeSquare<T>(square);
    AddColumns<R, Stored, T, Stored::kParts>(tile, q + column, square, sum);
  }
  if (HWY_UNLIKELY(column < tile.D)) {
    HWY_ALIGN T sums[R * N];
    for (int r = 0; r < R; ++r) hn::Store(sum[r], d, sums + r * N);
    AddLastColumns<R, Stored, T>(tile, q, column, keys, sums);
    for (int r = 0; r < R; ++r) sum[r] = hn::Load(d, sums + r * N);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) hn::StoreU(sum[r], d, tile.scores + (r0 + r) * tile.scores_stride + c);
}

template <class Stored, class T>
struct ScoreRun {
  const ScoreTile<T>& tile;
  const typename Stored::Element* const* keys;
  int64_t c;
  uint64_t ahead;
  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    ScoresOfSquares<R, Stored, T>(tile, r0, c, keys, ahead);
  }
};

template <class Stored, class T>
HWY_NOINLINE void ScoresOfStored(const ScoreTile<T>& tile, const StoredRows& rows) {
  using Element = typename Stored::Element;
  constexpr int64_t N = kLanes<T>;
  const Element* first = static_cast<const Element*>(rows.data);
  const Element* keys[N];
  const uint64_t ahead = BytesAhead(rows);
  for (int64_t c = tile.begin; c < tile.end; c += N) {
    // Lanes past the end repeat the last key: no other memory is known to be there.
    for (int64_t l = 0; l < N; ++l) keys[l] = first + std::min(c + l, tile.end - 1) * rows.row_stride;
    ForRowRuns(tile.rows, ScoreRun<Stored, T>{tile, keys, c, ahead});
  }
}

/// Sums of weights times value rows.
template <class Stored, class T>
struct ValueRun {
  const T* weights;  ///< [rows, weights_stride], at the first value row
  int64_t weights_stride;
  const typename Stored::Element* values;
  int64_t values_stride;
  int64_t count;    ///< value rows
  int64_t vectors;  ///< of the width
  bool fresh;       ///< sums begin at 0
  uint64_t ahead;   ///< bytes to the lines asked for
  T* sums;          ///< [rows, sums_stride]
  int64_t sums_stride;

  template <int R, int V>
  HWY_INLINE void Tile(int64_t r0, int64_t first) const {
    const Tag<T> d;
    constexpr int64_t N = kLanes<T>;
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(typename Stored::Element));
    Vector<T> sum[R][V];
    T* to = sums + r0 * sums_stride + first * N;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = fresh ? hn::Zero(d) : hn::LoadU(d, to + r * sums_stride + v * N);
    }
    const T* HWY_RESTRICT w = weights + r0 * weights_stride;
    const typename Stored::Element* HWY_RESTRICT from = values + first * N;
    for (int64_t t = 0; t < count; ++t, from += values_stride) {
      for (int64_t line = 0; line < V * N; line += kLine) AskFor(from + line, ahead);
      Vector<T> streamed[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) streamed[v] = Stored::load(from + v * N);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto broadcast = hn::Set(d, w[r * weights_stride + t]);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(broadcast, streamed[v], sum[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, to + r * sums_stride + v * N);
    }
  }
  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    constexpr int V = R <= 4 ? kTileVectors : kTileVectors / 2;
    int64_t v = 0;
    for (; v + V <= vectors; v += V) Tile<R, V>(r0, v);
    for (; v < vectors; ++v) Tile<R, 1>(r0, v);
  }
};

/// The value columns that do not fill a vector, for the rows of one pass.
template <class T>
HWY_INLINE void CopyLastColumns(const StoredRows& values, int64_t first, int64_t count, int64_t column, T* out) {
  constexpr int64_t N = kLanes<T>;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t c = column; c < values.columns; ++c) {
      const int64_t element = (first + t) * values.row_stride + c;
      const char* from = static_cast<const char*>(values.data) + element * size_of(values.dtype);
      out[t * N + c - column] = load_as<T>(values.dtype, from);
    }
  }
}

/// out = p v in passes that stay in L1 while vectors pass.
template <class Stored, class T>
HWY_NOINLINE void OutputsOfStored(const DecodeTile<T>& tile) {
  const ForwardTile<T>& block = tile.block;
  const ScoreTile<T>& score = block.score;
  constexpr int64_t N = kLanes<T>;
  const int64_t vectors = tile.values.columns / N;
  HWY_ALIGN T last[kValueRows * N] = {};
  const auto* values = static_cast<const typename Stored::Element*>(tile.values.data);
  for (int64_t c = score.begin; c < score.end; c += kValueRows) {
    const int64_t count = std::min(kValueRows, score.end - c);
    const bool fresh = c == score.begin;
    const ValueRun<Stored, T> run = {score.scores + c,
                                     score.scores_stride,
                                     values + c * tile.values.row_stride,
                                     tile.values.row_stride,
                                     count,
                                     vectors,
                                     fresh,
                                     BytesAhead(tile.values),
                                     block.out,
                                     block.out_stride};
    ForRowRuns(score.rows, run);
    if (vectors * N == tile.values.columns) continue;
    CopyLastColumns<T>(tile.values, c, count, vectors * N, last);
    ForRowRuns(score.rows, ValueRun<StoredWhole<T>, T>{score.scores + c, score.scores_stride, last, N, count, 1, fresh,
                                                       0, block.out + vectors * N, block.out_stride});
  }
}

/// Weights of 0 where a register tile of rows sees no column: all rows here share one pass over the values.
template <class T>
HWY_INLINE void ClearOutside(const ScoreTile<T>& score, const ColumnSpan* spans) {
  for (int64_t r = 0; r < score.rows; ++r) {
    const ColumnSpan span = spans[r / kTileRows];
    T* p = score.scores + r * score.scores_stride;
    std::fill(p + score.begin, p + std::max(span.begin, score.begin), T{0});
    std::fill(p + std::max(span.end, score.begin), p + score.end, T{0});
  }
}

template <class Stored, class T>
HWY_INLINE bool DecodeStored(const DecodeTile<T>& tile) {
  const ForwardTile<T>& block = tile.block;
  ForwardRows<T> rows;
  if (tile.panels.data != nullptr) {
    ScoresOfPanels<Stored, T>(block.score, tile.panels);
  } else {
    ScoresOfStored<Stored, T>(block.score, tile.keys);
  }
  ScoresOfTileRows<true>(block.score, rows.lanes, rows.smallest_lanes, rows.spans);
  WeightsOfTile(block.score, block.dropout, rows);
  ClearOutside(block.score, rows.spans);
  MergeSums(rows.block_m, rows.block_l, block.score.rows, true, block.m, block.l, rows.factors);
  OutputsOfStored<Stored, T>(tile);
  bool finite = true;
  for (int64_t r = 0; r < block.score.rows; ++r) {
    finite = finite && AllFinite(block.out + r * block.out_stride, block.v_stride);
  }
  return finite;
}

template <class T>
bool DecodeBlock(const DecodeTile<T>& tile) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (tile.values.dtype == DType::bf16) return DecodeStored<StoredBFloat16, T>(tile);
    if (tile.values.dtype == DType::f16) return DecodeStored<StoredFloat16, T>(tile);
  }
  return DecodeStored<StoredWhole<T>, T>(tile);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_DECODE_INL_H_
