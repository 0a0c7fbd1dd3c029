// SPDX-License-Identifier: Apache-2.0
// Products with a bf16 matrix that stays bf16: two rows of it, the elements of a column side by side, make a row of
// pairs. Without a bf16 dot product, or where the other operand is wider, a step widens its pairs in registers (a shift
// and a mask) and multiplies twice in f32.
#if defined(QKV_MATMUL_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_PAIRS_INL_H_
#undef QKV_MATMUL_PAIRS_INL_H_
#else
#define QKV_MATMUL_PAIRS_INL_H_
#endif

#include <cstring>

#include "kernels/matmul_stage-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// The bits of a BFloat16Pair whose elements are multiplied with f32, one after the other.
struct WidenedPair {
  float bits;
};

template <>
struct ProductStep<float, WidenedPair> {
  using A = float;
  using Lanes = Vector<float>;
  static constexpr int kParts = 2;
  static HWY_INLINE Lanes Broadcast(const float* a) { return hn::Set(Tag<float>(), *a); }
  template <int part>
  static HWY_INLINE Lanes Load(const WidenedPair* b) {
    return StoredBFloat16::part<part>(hn::LoadU(Tag<float>(), &b->bits));
  }
  static HWY_INLINE Lanes Add(Lanes a, Lanes b, Lanes sum) { return hn::MulAdd(a, b, sum); }
};

/// Two consecutive bf16 elements a lane.
struct StoredPairs {
  using Element = uint16_t;
  static HWY_INLINE Vector<float> load(const uint16_t* from) {
#if HWY_TARGET == HWY_SCALAR
    float pair = 0;  // its vectors of bytes have one lane
    std::memcpy(&pair, from, sizeof(pair));
    return hn::Set(Tag<float>(), pair);
#else
    const hn::Repartition<uint16_t, Tag<float>> elements;
    return hn::BitCast(Tag<float>(), hn::LoadU(elements, from));
#endif
  }
};

/// N columns of rows r and r + 1 as pairs; rows and columns that are not there are 0.
HWY_INLINE Vector<float> PairsOfRows(const StoredRows& source, int64_t r, int64_t c) {
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::Rebind<uint16_t, Tag<float>> dh;
  constexpr int64_t N = kLanes<float>;
  const auto* in = static_cast<const uint16_t*>(source.data) + r * source.row_stride + c * source.column_stride;
  const int64_t count = std::clamp<int64_t>(source.columns - c, 0, N);
  HWY_ALIGN uint16_t low[N] = {};
  HWY_ALIGN uint16_t high[N] = {};
  for (int64_t i = 0; i < count; ++i) low[i] = in[i * source.column_stride];
  for (int64_t i = 0; r + 1 < source.rows && i < count; ++i) high[i] = in[i * source.column_stride + source.row_stride];
  const auto upper = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::Load(dh, high)));
  return hn::BitCast(Tag<float>(), hn::Or(hn::PromoteTo(du, hn::Load(dh, low)), upper));
}

/// Rows [first, source.rows), two at a time.
inline void StageAnyPairs(const StoredRows& source, int64_t first, float* out, int64_t out_stride, int64_t padded) {
  for (int64_t r = first; r < source.rows; r += 2) {
    for (int64_t c = 0; c < padded; c += kLanes<float>) {
      hn::StoreU(PairsOfRows(source, r, c), Tag<float>(), out + r / 2 * out_stride + c);
    }
  }
}

inline void StageContiguousPairs(const StoredRows& source, float* HWY_RESTRICT out, int64_t out_stride,
                                 int64_t padded) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::Rebind<uint16_t, Tag<float>> dh;
  constexpr int64_t N = kLanes<float>;
  const int64_t whole = source.columns / N * N;
  for (int64_t r = 0; r < source.rows; r += 2, out += out_stride) {
    const uint16_t* HWY_RESTRICT in = static_cast<const uint16_t*>(source.data) + r * source.row_stride;
    int64_t c = 0;
    for (; r + 1 < source.rows && c < whole; c += N) {
      PrefetchToL2(in + c + kRowsAhead * source.row_stride);
      PrefetchToL2(in + c + (kRowsAhead + 1) * source.row_stride);
      const auto low = hn::PromoteTo(du, hn::LoadU(dh, in + c));
      const auto high = hn::PromoteTo(du, hn::LoadU(dh, in + c + source.row_stride));
      hn::StoreU(hn::BitCast(d, hn::Or(low, hn::ShiftLeft<16>(high))), d, out + c);
    }
    for (; c < padded; c += N) hn::StoreU(PairsOfRows(source, r, c), d, out + c);
  }
}

/// out[p, c] = the pair of source[2 p, c] and source[2 p + 1, c]; columns up to `padded` and an odd last row are 0.
inline void StagePairs(const StoredRows& source, float* out, int64_t out_stride, int64_t padded) {
  if (source.column_stride == 1) {
    StageContiguousPairs(source, out, out_stride, padded);
  } else if (source.row_stride == 1) {
    StageAnyPairs(source, StageSquares<StoredPairs, float, 2>(source, out, out_stride, padded), out, out_stride,
                  padded);
  } else {
    StageAnyPairs(source, 0, out, out_stride, padded);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_PAIRS_INL_H_
