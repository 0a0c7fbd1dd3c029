// SPDX-License-Identifier: Apache-2.0
// A forward tile of few rows: keys and values stream from where they are stored, once, and are not packed.
//
// Keys: a square of as many keys as there are lanes, by the columns that fill a vector, is transposed in registers; its
// vectors then have lanes along keys, as packed panels have. Lines reach L1 in the order of their addresses, some keys
// before their squares (read_ahead-inl.h). Values: lanes along the width, as they lie. Every sum runs
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
#include "kernels/read_ahead-inl.h"
#include "kernels/squares-inl.h"
#include "kernels/stored-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Keys are loaded this many bytes before squares of them are, or as many as a vector has lanes, in order: squares take
/// a line of each of many rows, which no hardware foresees. Measured on Zen 4: 33 GB/s, with a prefetch of each line
/// instead 28, with neither 10.
constexpr int64_t kLoadAheadBytes = 8 * 1024;

/// Bytes of value rows that all rows of a tile pass over before the next: the second pass finds them in L1, and is
/// over before the hardware has stopped reading ahead. Measured on Zen 4: 31 GB/s, with four times as many 20.
constexpr int64_t kValueBytes = 4096;
constexpr int64_t kMostValueRows = 64;
/// An even number: bf16 pairs take two.
HWY_INLINE int64_t ValueRowsTogether(const StoredRows& values) {
  const int64_t row_bytes = std::max<int64_t>(1, values.columns * size_of(values.dtype));
  return std::clamp<int64_t>(kValueBytes / row_bytes / 2 * 2, 8, kMostValueRows);
}

/// Rows [begin, end).
HWY_INLINE StoredRows SomeRows(const StoredRows& rows, int64_t begin, int64_t end) {
  StoredRows some = rows;
  some.data = static_cast<const char*>(rows.data) + begin * rows.row_stride * size_of(rows.dtype);
  some.rows = end - begin;
  return some;
}

template <class Stored, class T>
HWY_NOINLINE void ScoresOfStored(const ScoreTile<T>& tile, const StoredRows& rows, const void* then) {
  using Element = typename Stored::Element;
  constexpr int64_t N = kLanes<T>;
  const Element* first = static_cast<const Element*>(rows.data);
  const Element* keys[N];
  LinesAhead next(OrderOfRows(SomeRows(rows, tile.begin, tile.end), then));
  next.Load(LinesOf(std::max(kLoadAheadBytes, N * rows.columns * size_of(rows.dtype))));
  for (int64_t c = tile.begin; c < tile.end; c += N) {
    // Lanes past the end repeat the last key: no other memory is known to be there.
    for (int64_t l = 0; l < N; ++l) keys[l] = first + std::min(c + l, tile.end - 1) * rows.row_stride;
    ForRowRuns(tile.rows, ScoreRun<Stored, T, LinesAhead>{tile, keys, c, next});
  }
}

/// Sums that a register tile of outputs holds: beside them the vectors of a value row must find room.
constexpr int kOutputSums = 8 * kTileVectors / 2;

/// Sums of weights times value rows. A tile has all vectors of a row, up to 8, and as many rows of weights as then fit:
/// value rows are read in order.
template <class Stored, class T>
struct ValueRun {
  const T* weights;  ///< [rows, weights_stride], at the first value row
  int64_t weights_stride;
  const typename Stored::Element* values;
  int64_t values_stride;
  int64_t count;    ///< value rows
  int64_t vectors;  ///< of the width
  bool fresh;       ///< sums begin at 0
  int64_t rows;
  T* sums;  ///< [rows, sums_stride]
  int64_t sums_stride;

  template <int R, int V>
  HWY_INLINE void Tile(int64_t r0, int64_t first) const {
    const Tag<T> d;
    constexpr int64_t N = kLanes<T>;
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
      Vector<T> broadcast[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) broadcast[r] = hn::Set(d, w[r * weights_stride + t]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        const auto streamed = Stored::load(from + v * N);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][v] = hn::MulAdd(broadcast[r], streamed, sum[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, to + r * sums_stride + v * N);
    }
  }

  /// V vectors of all rows, R rows at a time.
  template <int R, int V>
  HWY_INLINE void Rows(int64_t r0, int64_t first) const {
    for (; r0 + R <= rows; r0 += R) Tile<R, V>(r0, first);
    if constexpr (R > 1) {
      if (r0 < rows) Rows<R - 1, V>(r0, first);
    }
  }
  /// All vectors from `first` on, V at a time.
  template <int V>
  HWY_INLINE void Vectors(int64_t first) const {
    for (; first + V <= vectors; first += V) Rows<std::min(4, kOutputSums / V), V>(0, first);
    if constexpr (V > 1) Vectors<V / 2>(first);
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

/// out = p v, some value rows after the other.
template <class Stored, class T>
HWY_NOINLINE void OutputsOfStored(const DecodeTile<T>& tile) {
  const ForwardTile<T>& block = tile.block;
  const ScoreTile<T>& score = block.score;
  constexpr int64_t N = kLanes<T>;
  const int64_t vectors = tile.values.columns / N;
  HWY_ALIGN T last[kMostValueRows * N];
  if (vectors * N < tile.values.columns) std::fill_n(last, kMostValueRows * N, T{0});
  const auto* values = static_cast<const typename Stored::Element*>(tile.values.data);
  const int64_t some = ValueRowsTogether(tile.values);
  LinesAhead ahead(OrderOfRows(SomeRows(tile.values, score.begin, score.end), tile.then));
  for (int64_t c = score.begin; c < score.end; c += some) {
    const int64_t count = std::min(some, score.end - c);
    const bool fresh = c == score.begin;
    ahead.Pass(count * tile.values.columns * size_of(tile.values.dtype));
    const ValueRun<Stored, T> run = {score.scores + c,
                                     score.scores_stride,
                                     values + c * tile.values.row_stride,
                                     tile.values.row_stride,
                                     count,
                                     vectors,
                                     fresh,
                                     score.rows,
                                     block.out,
                                     block.out_stride};
    run.template Vectors<8>(0);
    if (vectors * N == tile.values.columns) continue;
    CopyLastColumns<T>(tile.values, c, count, vectors * N, last);
    const ValueRun<StoredWhole<T>, T> rest = {
        score.scores + c,        score.scores_stride, last, N, count, 1, fresh, score.rows,
        block.out + vectors * N, block.out_stride};
    rest.template Vectors<1>(0);
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
    ScoresOfPanels<Stored, T>(block.score, tile.panels, tile.values.data);
  } else {
    ScoresOfStored<Stored, T>(block.score, tile.keys, tile.values.data);
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
