// SPDX-License-Identifier: Apache-2.0
// One forward tile: some queries against one key block.
//
//   s = scores, m = max s, p = exp(s - m), l = sum p, O = (r p) v        the block's triple, from zero
//   (m, l, O) of the row merges with it: both are brought to the larger maximum and added
//
// Operations per pair: 2 D for the score, 2 Dv for the output, one exponential (15 instructions per vector). The scores
// of all rows come first, then all exponentials, then all outputs, so that the short chains of one row overlap with
// work of others. The packed keys and values of the block stay in L2 and stream through L1 once per register tile of
// rows, 11 bytes a cycle; the scores of 48 rows go through L2 as well, 12 bytes for 24 D operations and more.
//
// A register tile of rows computes the vectors of columns that one of its rows sees, and no others. Largest and
// smallest scores come from the registers of the product where every row sees every column.
// Sums over keys run in key order: p in lanes by position, then across lanes as ReduceRows does; O key by key.
//
// With operands in pairs of bf16, p is rounded once as it enters O; l is the sum of the unrounded ones, and a fourth
// number of the row, the sum of the rounded ones, is what O is divided by in the end.
#if defined(QKV_ATTENTION_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_FORWARD_INL_H_
#undef QKV_ATTENTION_FORWARD_INL_H_
#else
#define QKV_ATTENTION_FORWARD_INL_H_
#endif

#include <algorithm>

#include "kernels/dropout-inl.h"
#include "kernels/forward_scores-inl.h"
#include "kernels/merge-inl.h"
#include "kernels/nonfinite-inl.h"
#include "kernels/read_ahead-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// The rows of a tile on their way from scores to outputs. Arrays hold one number per row.
template <class T>
struct ForwardRows {
  static constexpr int64_t kRows = PaddedRows<T>(kForwardRows);
  HWY_ALIGN T lanes[kRows * kLanes<T>];  ///< [rows, lanes]: largest scores, then sums of exponentials
  HWY_ALIGN T smallest_lanes[kRows * kLanes<T>];
  HWY_ALIGN T largest[kRows];
  HWY_ALIGN T smallest[kRows];
  HWY_ALIGN T block_m[kRows];
  HWY_ALIGN T block_l[kRows];
  HWY_ALIGN T weight_lanes[kRows * kLanes<T>];  ///< in pairs: sums of rounded weights
  HWY_ALIGN T block_weights[kRows];
  MergeFactors<T> factors;
  ColumnSpan spans[kForwardRows / kTileRows];  ///< of each register tile: the columns that one of its rows sees
};

/// exp(s scale - m) of one vector. `normal`: no visible score of the row is so far below m that its exponential is not
/// a normal number; the bits are the same either way.
template <class T>
HWY_INLINE Vector<T> Exponentials(Vector<T> s, Vector<T> scale, Vector<T> m, bool normal) {
  const auto x = hn::Sub(hn::Mul(s, scale), m);
  return normal ? ExpNormal<T>(x) : ExpNonPositive<T>(x);
}

/// Vectors of exponentials that go together.
constexpr int kExpVectors = kTileVectors;

/// The same of consecutive vectors, from `s` on.
template <bool kNormal, class T, int V>
HWY_INLINE void ConsecutiveExponentials(const T* s, Vector<T> scale, Vector<T> m, Vector<T> (&p)[V]) {
  const Tag<T> d;
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) p[v] = hn::Sub(hn::Mul(hn::LoadU(d, s + v * kLanes<T>), scale), m);
  if constexpr (kNormal) {
    RaisedExps<0, T>(p);
  } else {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) p[v] = ExpNonPositive<T>(p[v]);
  }
}

/// The same where `lanes` are visible, 0 elsewhere.
template <bool kNormal, class T>
HWY_INLINE Vector<T> ShownExponentials(Vector<T> s, Vector<T> scale, Vector<T> m, uint64_t lanes) {
  if (lanes == 0) return hn::Zero(Tag<T>());
  const auto p = Exponentials<T>(s, scale, m, kNormal);
  return lanes == kAllLanes<T> ? p : hn::IfThenElseZero(MaskOfLanes<T>(lanes), p);
}

/// What becomes of a row of scores where operands are of T; forward_pairs-inl.h has that of pairs.
template <class T, class E>
struct ForwardSteps {
  using Score = ScoreTile<T, E>;

  /// p of one row in place of its scores, on the words of `span`: 0 where hidden. Returns the sum in lanes by position.
  template <bool kNormal>
  static HWY_INLINE Vector<T> ExponentialsOfRow(const Score& score, int64_t r, ColumnSpan span, T scale_of_scores,
                                                T largest, ForwardRows<T>& /*rows*/) {
    constexpr int64_t N = kLanes<T>;
    const Tag<T> d;
    T* HWY_RESTRICT s = score.scores + r * score.scores_stride;
    const auto scale = hn::Set(d, scale_of_scores);
    const auto m = hn::Set(d, largest);
    auto sum = hn::Zero(d);
    for (int64_t word = span.begin / kWordBits * kWordBits; word < span.end; word += kWordBits) {
      const uint64_t shown = ShownWord(score, r, word);
      const int64_t end = std::min(word + kWordBits, span.end);
      if (HWY_LIKELY(shown == ~uint64_t{0})) {
        static_assert(kWordBits % (kExpVectors * N) == 0);
        for (int64_t c = word; c < word + kWordBits; c += kExpVectors * N) {
          AddExponentials<kNormal, kExpVectors>(s + c, scale, m, sum);
        }
        continue;
      }
      for (int64_t c = word; c < end;) {
        constexpr uint64_t kBoth = kAllLanes<T> << N | kAllLanes<T>;
        if (c + N < end && (shown >> (c - word) & kBoth) == kBoth) {
          AddExponentials<kNormal, 2>(s + c, scale, m, sum);
          c += 2 * N;
          continue;
        }
        const auto p = ShownExponentials<kNormal, T>(hn::LoadU(d, s + c), scale, m, LanesOfWord<T>(shown, c - word));
        sum = hn::Add(sum, p);
        hn::StoreU(p, d, s + c);
        c += N;
      }
    }
    return sum;
  }
  /// p of V vectors in place of their scores.
  template <bool kNormal, int V>
  static HWY_INLINE void AddExponentials(T* HWY_RESTRICT s, Vector<T> scale, Vector<T> m, Vector<T>& sum) {
    const Tag<T> d;
    Vector<T> p[V];
    ConsecutiveExponentials<kNormal, T>(s, scale, m, p);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      sum = hn::Add(sum, p[v]);
      hn::StoreU(p[v], d, s + v * kLanes<T>);
    }
  }
  /// r p in place of p.
  static HWY_NOINLINE void DropWeights(const TileDropout<T>& dropout, const Score& score, int64_t r, ColumnSpan span) {
    const Tag<T> d;
    T* HWY_RESTRICT p = score.scores + r * score.scores_stride;
    for (int64_t c = span.begin / kLanes<T> * kLanes<T>; c < span.end; c += kLanes<T>) {
      hn::StoreU(hn::Mul(hn::LoadU(d, p + c), DropoutFactors<T>(dropout, r, c)), d, p + c);
    }
  }
  static HWY_INLINE void SumRoundedWeights(int64_t /*count*/, ForwardRows<T>& /*rows*/) {}
  /// Weights of the tile, [rows, scores_stride].
  static HWY_INLINE const E* Weights(const Score& score) { return score.scores; }
  /// What O still lacks of r.
  static HWY_INLINE T OutputFactor(const TileDropout<T>& /*dropout*/) { return T{1}; }
};

/// Scores to weights, with the block's m and l.
template <class T, class E>
HWY_INLINE void WeightsOfTile(const ScoreTile<T, E>& score, const TileDropout<T>& dropout, ForwardRows<T>& rows) {
  using Steps = ForwardSteps<T, E>;
  const Tag<T> d;
  ReduceRows<LargestOf>(rows.lanes, score.rows, rows.largest);
  ReduceRows<SmallestOf>(rows.smallest_lanes, score.rows, rows.smallest);
  const T scale = score.finished ? T{1} : score.scale;
  for (int64_t r = 0; r < score.rows; ++r) {
    const ColumnSpan span = rows.spans[r / kTileRows];
    T largest = rows.largest[r];
    if (HWY_UNLIKELY(largest <= std::numeric_limits<T>::lowest() && span.begin < span.end)) {
      largest = RaiseRow<T>(score, r);
      rows.smallest[r] = kHidden<T>;
    }
    const bool empty = largest == kHidden<T>;
    const T m = empty ? T{0} : largest * scale;
    // False for NaN too.
    const bool normal = rows.smallest[r] * scale - m >= ExpConstants<T>::kNormal;
    const auto sum = normal ? Steps::template ExponentialsOfRow<true>(score, r, span, scale, m, rows)
                            : Steps::template ExponentialsOfRow<false>(score, r, span, scale, m, rows);
    hn::Store(sum, d, rows.lanes + r * kLanes<T>);
    rows.block_m[r] = empty ? largest : m;
    if (HWY_UNLIKELY(dropout.kept != nullptr)) Steps::DropWeights(dropout, score, r, span);
  }
  ReduceRows<SumOf>(rows.lanes, score.rows, rows.block_l);
  Steps::SumRoundedWeights(score.rows, rows);
}

/// What becomes of the sums of a row of outputs: merged with the row's.
template <class T, bool kScaled>
struct StoreOutputs {
  const MergeFactors<T>& factors;
  int64_t row;  ///< of the tile, that is row 0 of the product
  T* out;       ///< of the tile's row 0
  int64_t out_stride;
  bool first;
  T factor;  ///< of the sums, when kScaled

  template <int V>
  HWY_INLINE void operator()(int64_t r, int64_t vector, const Vector<T> (&sum)[V]) const {
    const Tag<T> d;
    const int64_t n = row + r;
    T* HWY_RESTRICT to = out + n * out_stride + vector * kLanes<T>;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      auto x = kScaled ? hn::Mul(sum[v], hn::Set(d, factor)) : sum[v];
      if (!first) x = MergeOutput(hn::LoadU(d, to + v * kLanes<T>), x, factors.old[n], factors.block[n]);
      hn::StoreU(x, d, to + v * kLanes<T>);
    }
  }
};

/// O: one product per register tile, over the keys that its rows see. `between()` is called before each.
template <bool kScaled, class T, class E, class Between>
HWY_INLINE void OutputsOfTile(const ForwardTile<T, E>& tile, const ForwardRows<T>& all, const Between& between) {
  const ScoreTile<T, E>& score = tile.score;
  const int64_t vectors = tile.v_stride / kLanes<T>;
  const T factor = ForwardSteps<T, E>::OutputFactor(tile.dropout);
  for (int64_t r = 0; r < score.rows; r += kTileRows) {
    between();
    const int64_t rows = std::min<int64_t>(kTileRows, score.rows - r);
    const int64_t first_step = all.spans[r / kTileRows].begin / kElements<T, E>;
    const int64_t last_step = (all.spans[r / kTileRows].end + kElements<T, E> - 1) / kElements<T, E>;
    const E* weights = ForwardSteps<T, E>::Weights(score) + r * score.scores_stride;
    const ProductOperands<T, E> product = {
        .a = weights + first_step,
        .a_row = score.scores_stride,
        .a_step = 1,
        .b = tile.v + first_step * tile.v_stride,
        .b_step = tile.v_stride,
        .c = tile.block_out,
        .c_row = tile.v_stride,
        .steps = last_step - first_step,
    };
    const StoreOutputs<T, kScaled> store = {all.factors, r, tile.out, tile.out_stride, tile.first, factor};
    if (HWY_LIKELY(tile.v_nonfinite.count == 0)) {
      ProductOfRows(product, rows, vectors, store);
      continue;
    }
    Product<Into::kSet>(product, rows, vectors);
    AddNonFiniteKeys(RowsOfTile(score, r, rows), tile.v_nonfinite, weights, tile.block_out, tile.v_stride);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t v = 0; v < vectors; ++v) {
        const Vector<T> sum[1] = {hn::LoadU(Tag<T>(), tile.block_out + row * tile.v_stride + v * kLanes<T>)};
        store(row, v, sum);
      }
    }
  }
}

/// The block's m and l, and what was rounded of it, into the rows'.
template <class T, class E>
HWY_INLINE void MergeTileSums(const ForwardTile<T, E>& tile, ForwardRows<T>& rows) {
  MergeSums(rows.block_m, rows.block_l, tile.score.rows, tile.first, tile.m, tile.l, rows.factors);
  if constexpr (kInPairs<T, E>) {
    MergeWeightSums(rows.block_weights, tile.score.rows, tile.first, rows.factors, tile.weight_sum);
  }
}

template <class T, class E>
void ForwardOfTile(const ForwardTile<T, E>& tile) {
  static_assert(kTileRows == kForwardTileRows && kForwardRows % kTileRows == 0);
  ForwardRows<T> rows;
  AskAhead ahead(tile.ahead, 2 * ((tile.score.rows + kTileRows - 1) / kTileRows));
  const auto ask = [&] { ahead.Ask(); };
  ScoresOfTileRows<false>(tile.score, rows.lanes, rows.smallest_lanes, rows.spans, ask);
  WeightsOfTile(tile.score, tile.dropout, rows);
  MergeTileSums(tile, rows);
  if (kInPairs<T, E> && HWY_UNLIKELY(tile.dropout.kept != nullptr)) {
    OutputsOfTile<kInPairs<T, E>>(tile, rows, ask);
  } else {
    OutputsOfTile<false>(tile, rows, ask);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_FORWARD_INL_H_
