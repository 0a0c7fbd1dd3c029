// SPDX-License-Identifier: Apache-2.0
// What a forward tile does otherwise where its operands are pairs of bf16: weights are rounded to nearest even on their
// way into the product with the values, two vectors of columns at a time, and lie as pairs in the place of their
// scores: those of a row in the first half of it. A dropped weight becomes 0; the factor 1 / (1 - p) of the others
// multiplies the finished sums, so that what a weight is rounded to does not depend on dropout.
#if defined(QKV_FORWARD_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_FORWARD_PAIRS_INL_H_
#undef QKV_FORWARD_PAIRS_INL_H_
#else
#define QKV_FORWARD_PAIRS_INL_H_
#endif

#include "kernels/attention_forward-inl.h"
#include "kernels/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <>
struct ForwardSteps<float, BFloat16Pair> {
  using Score = ScoreTile<float, BFloat16Pair>;
  using Floats = Vector<float>;

  /// The pairs of a row, which begin where its scores do.
  static HWY_INLINE BFloat16Pair* PairsOfScores(const Score& score, int64_t r) {
    return reinterpret_cast<BFloat16Pair*>(score.scores + r * score.scores_stride);
  }

  /// p of two vectors, rounded, in place of their scores; both kinds of sums go on.
  struct Sums {
    Floats exact;
    Floats rounded;
    HWY_INLINE void Add(Floats low, Floats high, BFloat16Pair* to) {
      exact = hn::Add(hn::Add(exact, low), high);
      const PairVector pairs = RoundToPairs(low, high);
      const PairVector ones = hn::Set(PairTag(), 0x3F803F80u);
      rounded = ProductStep<float, BFloat16Pair>::Add(pairs, ones, rounded);
      StorePairs(pairs, to);
    }
  };

  template <bool kNormal>
  static HWY_INLINE Floats ExponentialsOfRow(const Score& score, int64_t r, ColumnSpan span, float scale_of_scores,
                                             float largest, ForwardRows<float>& rows) {
    constexpr int64_t N = kLanes<float>;
    static_assert(kWordBits % (2 * N) == 0);
    const Tag<float> d;
    const float* s = score.scores + r * score.scores_stride;
    BFloat16Pair* pairs = PairsOfScores(score, r);
    const auto scale = hn::Set(d, scale_of_scores);
    const auto m = hn::Set(d, largest);
    Sums sums = {hn::Zero(d), hn::Zero(d)};
    for (int64_t word = span.begin / kWordBits * kWordBits; word < span.end; word += kWordBits) {
      const uint64_t shown = ShownWord(score, r, word);
      if (HWY_LIKELY(shown == ~uint64_t{0})) {
        static_assert(kWordBits == kExpVectors * N);
        Floats p[kExpVectors];
        ConsecutiveExponentials<kNormal, float>(s + word, scale, m, p);
#pragma GCC unroll 16
        for (int v = 0; v < kExpVectors; v += 2) sums.Add(p[v], p[v + 1], pairs + (word + v * N) / 2);
        continue;
      }
      for (int64_t c = word; c < std::min(word + kWordBits, span.end); c += 2 * N) {
        const uint64_t lanes = shown >> (c - word);
        const auto low = ShownExponentials<kNormal, float>(hn::LoadU(d, s + c), scale, m, LanesOfWord<float>(lanes, 0));
        const auto high =
            ShownExponentials<kNormal, float>(hn::LoadU(d, s + c + N), scale, m, LanesOfWord<float>(lanes, N));
        sums.Add(low, high, pairs + c / 2);
      }
    }
    hn::Store(sums.rounded, d, rows.weight_lanes + r * N);
    return sums.exact;
  }

  static HWY_NOINLINE void DropWeights(const TileDropout<float>& dropout, const Score& score, int64_t r,
                                       ColumnSpan span) {
    BFloat16Pair* pairs = PairsOfScores(score, r);
    constexpr int64_t kColumns = 2 * kLanes<float>;
    for (int64_t c = span.begin / kColumns * kColumns; c < span.end; c += kColumns) {
      const uint64_t word = dropout.kept[r * dropout.stride + c / kWordBits];
      const auto kept = static_cast<__mmask32>(word >> (c % kWordBits));
      StorePairs(PairVector{_mm512_maskz_mov_epi16(kept, LoadPairs(pairs + c / 2).raw)}, pairs + c / 2);
    }
  }
  static HWY_INLINE void SumRoundedWeights(int64_t count, ForwardRows<float>& rows) {
    ReduceRows<SumOf>(rows.weight_lanes, count, rows.block_weights);
  }
  static HWY_INLINE const BFloat16Pair* Weights(const Score& score) { return PairsOfScores(score, 0); }
  static HWY_INLINE float OutputFactor(const TileDropout<float>& dropout) { return dropout.keep; }
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_FORWARD_PAIRS_INL_H_
