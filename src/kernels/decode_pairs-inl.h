// SPDX-License-Identifier: Apache-2.0
// A forward tile of few rows in pairs of bf16, keys and values as they are stored: attention_decode-inl.h has the plan,
// and every sum runs in the order of the tile of pairs among many.
//
// Keys: a word holds two consecutive elements, so a transposed square is pairs with lanes along keys. Values: words of
// two rows are interleaved, 32 columns at a time. A step takes two inner elements: half of the multiply-adds in f32.
#if defined(QKV_DECODE_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_DECODE_PAIRS_INL_H_
#undef QKV_DECODE_PAIRS_INL_H_
#else
#define QKV_DECODE_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/attention_decode-inl.h"
#include "kernels/forward_pairs-inl.h"
#include "kernels/pair_squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

HWY_NOINLINE inline void PairScoresOfStored(const PairScores& tile, const StoredRows& rows, const void* then) {
  constexpr int64_t N = kLanes<float>;
  const auto* first = static_cast<const uint16_t*>(rows.data);
  const uint16_t* keys[N];
  LinesAhead next(OrderOfRows(SomeRows(rows, tile.begin, tile.end), then));
  next.Load(LinesOf(std::max(kLoadAheadBytes, N * rows.columns * size_of(rows.dtype))));
  for (int64_t c = tile.begin; c < tile.end; c += N) {
    // Lanes past the end repeat the last key: no other memory is known to be there.
    for (int64_t l = 0; l < N; ++l) keys[l] = first + std::min(c + l, tile.end - 1) * rows.row_stride;
    ForRowRuns(tile.rows, PairScoreRun<LinesAhead>{tile, rows.columns, keys, c, next});
  }
}

/// The range of some elements' magnitudes, 0 left out.
struct PairedRange {
  using Words = hn::Vec<hn::ScalableTag<uint16_t>>;
  Words largest;
  Words smallest_less_one;

  static HWY_INLINE PairedRange Empty() {
    const hn::ScalableTag<uint16_t> d;
    return {hn::Zero(d), hn::Set(d, uint16_t{0xFFFF})};
  }
  HWY_INLINE void Add(Words x) {
    const hn::ScalableTag<uint16_t> d;
    const auto magnitude = hn::And(x, hn::Set(d, uint16_t{0x7FFF}));
    largest = hn::Max(largest, magnitude);
    smallest_less_one = hn::Min(smallest_less_one, hn::Sub(magnitude, hn::Set(d, uint16_t{1})));
  }
  /// Pairs can hold every element.
  HWY_INLINE bool Fits() const {
    const hn::ScalableTag<uint16_t> d;
    constexpr auto kLargest = static_cast<uint16_t>(std::bit_cast<uint32_t>(kLargestPaired) >> 16);
    constexpr auto kSmallest = static_cast<uint16_t>(std::bit_cast<uint32_t>(kSmallestPaired) >> 16);
    const auto bound = hn::Set(d, static_cast<uint16_t>(kSmallest - 1));
    return hn::AllTrue(d, hn::Eq(hn::Max(largest, hn::Set(d, kLargest)), hn::Set(d, kLargest))) &&
           hn::AllTrue(d, hn::Eq(hn::Min(smallest_less_one, bound), bound));
  }
};

/// 32 columns of two rows as the pairs of each column, in two vectors.
HWY_INLINE void InterleaveRows(PairedRange::Words first, PairedRange::Words second, PairVector& left,
                               PairVector& right) {
  HWY_ALIGN static constexpr uint16_t kLeft[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i left_order = _mm512_load_si512(static_cast<const void*>(kLeft));
  const __m512i right_order = _mm512_add_epi16(left_order, _mm512_set1_epi16(16));
  left = PairVector{_mm512_permutex2var_epi16(first.raw, left_order, second.raw)};
  right = PairVector{_mm512_permutex2var_epi16(first.raw, right_order, second.raw)};
}

/// Columns of two vectors: what one load of bf16 has.
constexpr int64_t kValueColumns = 2 * kLanes<float>;

/// Sums of weights times value rows, two rows a step, over units of kValueColumns columns. A tile has all units of a
/// row, up to 4, and as many rows of weights as then fit: value rows are read in order.
struct PairValueRun {
  const BFloat16Pair* weights;  ///< [rows, weights_stride], at the first value row, an even one
  int64_t weights_stride;
  const uint16_t* values;
  int64_t values_stride;
  int64_t count;  ///< value rows
  int64_t units;
  bool fresh;  ///< sums begin at 0
  int64_t rows;
  float* sums;  ///< [rows, sums_stride]
  int64_t sums_stride;
  PairedRange* range;  ///< collects from the first rows' pass

  template <bool kCollect, int R, int U>
  HWY_INLINE void Tile(int64_t r0, int64_t unit) const {
    const Tag<float> d;
    const hn::ScalableTag<uint16_t> dh;
    constexpr int64_t N = kLanes<float>;
    constexpr int V = 2 * U;
    Vector<float> sum[R][V];
    float* to = sums + r0 * sums_stride + unit * kValueColumns;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) sum[r][v] = fresh ? hn::Zero(d) : hn::LoadU(d, to + r * sums_stride + v * N);
    }
    const BFloat16Pair* HWY_RESTRICT w = weights + r0 * weights_stride;
    const uint16_t* HWY_RESTRICT from = values + unit * kValueColumns;
    PairedRange seen = *range;
    for (int64_t t = 0; t < count; t += 2, ++w, from += 2 * values_stride) {
      PairVector broadcast[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) broadcast[r] = PairStep::Broadcast(w + r * weights_stride);
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u) {
        const uint16_t* at = from + u * kValueColumns;
        const auto first = hn::LoadU(dh, at);
        auto second = hn::Zero(dh);
        if (HWY_LIKELY(t + 1 < count)) second = hn::LoadU(dh, at + values_stride);
        if constexpr (kCollect) {
          seen.Add(first);
          seen.Add(second);
        }
        PairVector left, right;
        InterleaveRows(first, second, left, right);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          sum[r][2 * u] = PairStep::Add(broadcast[r], left, sum[r][2 * u]);
          sum[r][2 * u + 1] = PairStep::Add(broadcast[r], right, sum[r][2 * u + 1]);
        }
      }
    }
    if constexpr (kCollect) *range = seen;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, to + r * sums_stride + v * N);
    }
  }

  /// U units of the rows from r0 on, R rows at a time.
  template <bool kCollect, int R, int U>
  HWY_INLINE void Rows(int64_t r0, int64_t unit) const {
    if constexpr (kCollect) {
      if (rows >= R) {
        Tile<true, R, U>(0, unit);
        return Rows<false, R, U>(R, unit);
      }
    } else {
      for (; r0 + R <= rows; r0 += R) Tile<false, R, U>(r0, unit);
      if (r0 == rows) return;
    }
    if constexpr (R > 1) Rows<kCollect, R - 1, U>(r0, unit);
  }
  /// All units from `unit` on, U at a time.
  template <int U>
  HWY_INLINE void Units(int64_t unit) const {
    for (; unit + U <= units; unit += U) Rows<true, std::min(4, kOutputSums / (2 * U)), U>(0, unit);
    if constexpr (U > 1) Units<U / 2>(unit);
  }
};

/// out = p v, some value rows after the other. False when pairs cannot hold some value.
HWY_NOINLINE inline bool PairOutputsOfStored(const DecodeTile<float, BFloat16Pair>& tile) {
  const ForwardTile<float, BFloat16Pair>& block = tile.block;
  const PairScores& score = block.score;
  const StoredRows& stored = tile.values;
  const int64_t units = stored.columns / kValueColumns;
  const int64_t column = units * kValueColumns;
  HWY_ALIGN uint16_t last[kMostValueRows * kValueColumns];
  if (column < stored.columns) std::fill_n(last, kMostValueRows * kValueColumns, uint16_t{0});
  HWY_ALIGN float last_sums[16 * kValueColumns];
  const auto* values = static_cast<const uint16_t*>(stored.data);
  const BFloat16Pair* weights = ForwardSteps<float, BFloat16Pair>::Weights(score);
  PairedRange range = PairedRange::Empty();
  LinesAhead ahead(OrderOfRows(SomeRows(stored, score.begin, score.end), tile.then));
  const int64_t some = ValueRowsTogether(stored);
  for (int64_t c = score.begin; c < score.end; c += some) {
    const int64_t count = std::min(some, score.end - c);
    PairValueRun run = {weights + c / 2,
                        score.scores_stride,
                        values + c * stored.row_stride,
                        stored.row_stride,
                        count,
                        units,
                        c == score.begin,
                        score.rows,
                        block.out,
                        block.out_stride,
                        &range};
    ahead.Pass(count * stored.columns * static_cast<int64_t>(sizeof(uint16_t)));
    run.Units<4>(0);
    if (column == stored.columns) continue;
    for (int64_t t = 0; t < count; ++t) {
      std::memcpy(last + t * kValueColumns, run.values + t * stored.row_stride + column,
                  static_cast<size_t>(stored.columns - column) * sizeof(uint16_t));
    }
    run.values = last;
    run.values_stride = kValueColumns;
    run.units = 1;
    run.sums = last_sums;
    run.sums_stride = kValueColumns;
    run.Units<1>(0);
  }
  for (int64_t r = 0; r < score.rows && column < block.v_stride; ++r) {
    std::copy_n(last_sums + r * kValueColumns, block.v_stride - column, block.out + r * block.out_stride + column);
  }
  return range.Fits();
}

/// Weights of 0 where a register tile of rows sees no column: all rows here share one pass over the values.
HWY_INLINE void ClearOutsidePairs(const PairScores& score, const ColumnSpan* spans) {
  constexpr int64_t kColumns = 2 * kLanes<float>;
  for (int64_t r = 0; r < score.rows; ++r) {
    const ColumnSpan span = spans[r / kTileRows];
    BFloat16Pair* p = ForwardSteps<float, BFloat16Pair>::PairsOfScores(score, r);
    const int64_t first = std::max(score.begin, span.begin / kWordBits * kWordBits);
    const int64_t last = std::max(score.begin, (span.end + kColumns - 1) / kColumns * kColumns);
    std::fill(p + score.begin / 2, p + first / 2, BFloat16Pair{0});
    if (last < score.end) std::fill(p + last / 2, p + (score.end + 1) / 2, BFloat16Pair{0});
  }
}

inline bool DecodePairs(const DecodeTile<float, BFloat16Pair>& tile) {
  const ForwardTile<float, BFloat16Pair>& block = tile.block;
  PairScores score = block.score;
  ForwardRows<float> rows;
  if (tile.panels.data != nullptr) {
    score.keys = static_cast<const BFloat16Pair*>(tile.panels.data);
    const int64_t key_bytes = score.D * static_cast<int64_t>(sizeof(BFloat16Pair));
    LinesAhead ahead({reinterpret_cast<const char*>(score.keys + score.begin * score.D),
                      (score.end - score.begin) * key_bytes, 0, 1, static_cast<const char*>(tile.values.data)});
    ahead.Pass((score.end - score.begin) * key_bytes);
    ScoresOfTileRows<false>(score, rows.lanes, rows.smallest_lanes, rows.spans);
  } else {
    PairScoresOfStored(score, tile.keys, tile.values.data);
    ScoresOfTileRows<true>(score, rows.lanes, rows.smallest_lanes, rows.spans);
  }
  WeightsOfTile(score, block.dropout, rows);
  ClearOutsidePairs(score, rows.spans);
  MergeTileSums(block, rows);
  if (!PairOutputsOfStored(tile)) return false;
  if (block.dropout.kept == nullptr) return true;
  const Tag<float> d;
  for (int64_t r = 0; r < score.rows; ++r) {
    float* HWY_RESTRICT out = block.out + r * block.out_stride;
    for (int64_t c = 0; c < block.v_stride; c += kLanes<float>) {
      hn::StoreU(hn::Mul(hn::LoadU(d, out + c), hn::Set(d, block.dropout.keep)), d, out + c);
    }
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_DECODE_PAIRS_INL_H_
