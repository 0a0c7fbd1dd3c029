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

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

using PairScores = ScoreTile<float, BFloat16Pair>;
using PairStep = ProductStep<float, BFloat16Pair>;

/// Sixteen keys from word `word` on, `words` of each, as sixteen vectors with lanes along keys; words that are not
/// there are 0. `elements` of a key are stored from there on.
HWY_INLINE void LoadSquare(const uint16_t* const* keys, int64_t word, int64_t elements, uint64_t ahead,
                           Vector<float> (&square)[kLanes<float>]) {
  constexpr int64_t N = kLanes<float>;
  const Tag<float> d;
  if (HWY_LIKELY(elements >= 2 * N)) {
#pragma GCC unroll 16
    for (int64_t l = 0; l < N; ++l) {
      square[l] = hn::LoadU(d, reinterpret_cast<const float*>(keys[l] + 2 * word));
      AskFor(keys[l] + 2 * word, ahead);
    }
  } else {
    HWY_ALIGN float words[N * N] = {};
    for (int64_t l = 0; l < N; ++l) {
      std::memcpy(words + l * N, keys[l] + 2 * word, static_cast<size_t>(elements) * sizeof(uint16_t));
    }
    for (int64_t l = 0; l < N; ++l) square[l] = hn::Load(d, words + l * N);
  }
  TransposeSquare<float>(square);
}

/// Raw scores of R rows from row r0 against one vector of keys, in column c.
struct PairScoreRun {
  const PairScores& tile;
  int64_t columns;  ///< elements of a key
  const uint16_t* const* keys;
  int64_t c;
  uint64_t ahead;

  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    constexpr int64_t N = kLanes<float>;
    const Tag<float> d;
    Vector<float> sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
    for (int64_t word = 0; word < tile.D; word += N) {
      Vector<float> square[N];
      LoadSquare(keys, word, columns - 2 * word, ahead, square);
      const BFloat16Pair* HWY_RESTRICT q = tile.q + r0 * tile.q_stride + word;
      if (HWY_LIKELY(word + N <= tile.D)) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < N; ++j) AddWord<R>(q + j, square[j], sum);
      } else {
        HWY_ALIGN float words[N * N];
        for (int64_t j = 0; j < N; ++j) hn::Store(square[j], d, words + j * N);
        for (int64_t j = 0; word + j < tile.D; ++j) AddWord<R>(q + j, hn::Load(d, words + j * N), sum);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) hn::StoreU(sum[r], d, tile.scores + (r0 + r) * tile.scores_stride + c);
  }

 private:
  template <int R>
  HWY_INLINE void AddWord(const BFloat16Pair* q, Vector<float> keys_word, Vector<float> (&sum)[R]) const {
    const PairVector word = hn::BitCast(PairTag(), keys_word);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = PairStep::Add(PairStep::Broadcast(q + r * tile.q_stride), word, sum[r]);
  }
};

HWY_NOINLINE inline void PairScoresOfStored(const PairScores& tile, const StoredRows& rows) {
  constexpr int64_t N = kLanes<float>;
  const auto* first = static_cast<const uint16_t*>(rows.data);
  const uint16_t* keys[N];
  const uint64_t ahead = BytesAhead(rows);
  for (int64_t c = tile.begin; c < tile.end; c += N) {
    // Lanes past the end repeat the last key: no other memory is known to be there.
    for (int64_t l = 0; l < N; ++l) keys[l] = first + std::min(c + l, tile.end - 1) * rows.row_stride;
    ForRowRuns(tile.rows, PairScoreRun{tile, rows.columns, keys, c, ahead});
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

/// Sums of weights times value rows, two rows a step, over units of kValueColumns columns.
struct PairValueRun {
  const BFloat16Pair* weights;  ///< [rows, weights_stride], at the first value row, an even one
  int64_t weights_stride;
  const uint16_t* values;
  int64_t values_stride;
  int64_t count;  ///< value rows
  int64_t units;
  bool fresh;      ///< sums begin at 0
  uint64_t ahead;  ///< bytes to the lines asked for
  float* sums;     ///< [rows, sums_stride]
  int64_t sums_stride;
  PairedRange* range;  ///< collects from the first rows' pass

  template <int R, int U>
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
      PairVector streamed[V];
#pragma GCC unroll 16
      for (int u = 0; u < U; ++u) {
        const uint16_t* at = from + u * kValueColumns;
        const auto first = hn::LoadU(dh, at);
        auto second = hn::Zero(dh);
        AskFor(at, ahead);
        if (HWY_LIKELY(t + 1 < count)) {
          second = hn::LoadU(dh, at + values_stride);
          AskFor(at + values_stride, ahead);
        }
        seen.Add(first);
        seen.Add(second);
        InterleaveRows(first, second, streamed[2 * u], streamed[2 * u + 1]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto broadcast = PairStep::Broadcast(w + r * weights_stride);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sum[r][v] = PairStep::Add(broadcast, streamed[v], sum[r][v]);
      }
    }
    *range = seen;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, to + r * sums_stride + v * N);
    }
  }
  template <int R>
  HWY_INLINE void operator()(int64_t r0) const {
    constexpr int U = R <= 4 ? 2 : 1;
    int64_t unit = 0;
    for (; unit + U <= units; unit += U) Tile<R, U>(r0, unit);
    for (; unit < units; ++unit) Tile<R, 1>(r0, unit);
  }
};

/// out = p v in passes that stay in L1 while columns pass. False when pairs cannot hold some value.
HWY_NOINLINE inline bool PairOutputsOfStored(const DecodeTile<float, BFloat16Pair>& tile) {
  const ForwardTile<float, BFloat16Pair>& block = tile.block;
  const PairScores& score = block.score;
  const StoredRows& stored = tile.values;
  const int64_t units = stored.columns / kValueColumns;
  const int64_t column = units * kValueColumns;
  HWY_ALIGN uint16_t last[kValueRows * kValueColumns] = {};
  HWY_ALIGN float last_sums[16 * kValueColumns];
  const auto* values = static_cast<const uint16_t*>(stored.data);
  const BFloat16Pair* weights = ForwardSteps<float, BFloat16Pair>::Weights(score);
  PairedRange range = PairedRange::Empty();
  for (int64_t c = score.begin; c < score.end; c += kValueRows) {
    const int64_t count = std::min(kValueRows, score.end - c);
    const bool fresh = c == score.begin;
    PairValueRun run = {weights + c / 2,
                        score.scores_stride,
                        values + c * stored.row_stride,
                        stored.row_stride,
                        count,
                        units,
                        fresh,
                        BytesAhead(stored),
                        block.out,
                        block.out_stride,
                        &range};
    ForRowRuns(score.rows, run);
    if (column == stored.columns) continue;
    for (int64_t t = 0; t < count; ++t) {
      std::memcpy(last + t * kValueColumns, run.values + t * stored.row_stride + column,
                  static_cast<size_t>(stored.columns - column) * sizeof(uint16_t));
    }
    run.values = last;
    run.values_stride = kValueColumns;
    run.units = 1;
    run.ahead = 0;
    run.sums = last_sums;
    run.sums_stride = kValueColumns;
    ForRowRuns(score.rows, run);
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
    ScoresOfTileRows<false>(score, rows.lanes, rows.smallest_lanes, rows.spans);
  } else {
    PairScoresOfStored(score, tile.keys);
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
