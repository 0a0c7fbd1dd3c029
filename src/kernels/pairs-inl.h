// SPDX-License-Identifier: Apache-2.0
// bf16 in pairs: the step of the dot product, rounding to pairs, and the packed forms. For files that begin with
// bf16_target.h.
//
// The instruction multiplies exactly and adds both products of a pair to an f32 sum, each addition rounded to nearest
// even; subnormal operands and results are flushed to 0.
#if defined(QKV_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_PAIRS_INL_H_
#undef QKV_PAIRS_INL_H_
#else
#define QKV_PAIRS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/attention_kernels.h"
#include "kernels/pack-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

using PairTag = hn::RebindToUnsigned<Tag<float>>;
using PairVector = hn::Vec<PairTag>;

HWY_INLINE PairVector LoadPairs(const BFloat16Pair* pairs) {
  return hn::LoadU(PairTag(), reinterpret_cast<const uint32_t*>(pairs));
}
HWY_INLINE void StorePairs(PairVector x, BFloat16Pair* pairs) {
  hn::StoreU(x, PairTag(), reinterpret_cast<uint32_t*>(pairs));
}

template <>
struct ProductStep<float, BFloat16Pair> {
  using A = BFloat16Pair;
  using Lanes = PairVector;
  static constexpr int kParts = 1;
  static HWY_INLINE Lanes Broadcast(const BFloat16Pair* a) { return hn::Set(PairTag(), a->bits); }
  template <int part>
  static HWY_INLINE Lanes Load(const BFloat16Pair* b) {
    return LoadPairs(b);
  }
  static HWY_INLINE Vector<float> Add(Lanes a, Lanes b, Vector<float> sum) {
    return Vector<float>{
        _mm512_dpbf16_ps(sum.raw, __builtin_bit_cast(__m512bh, a.raw), __builtin_bit_cast(__m512bh, b.raw))};
  }
};

/// Keeps what is finite finite when it is rounded to bf16: beyond its largest number it becomes that. NaN stays.
HWY_INLINE Vector<float> ClampToBFloat16(Vector<float> x) {
  const Tag<float> d;
  const auto largest = hn::Set(d, 0x1.FEp127F);
  const auto is_finite = hn::Lt(hn::Abs(x), hn::Inf(d));
  return hn::IfThenElse(hn::And(is_finite, hn::Gt(hn::Abs(x), largest)), hn::CopySign(largest, x), x);
}

/// Two vectors of f32, 32 consecutive elements of a row, rounded to nearest even: its 16 pairs. Subnormal numbers
/// become 0, as in the product.
HWY_INLINE PairVector RoundToPairs(Vector<float> low, Vector<float> high) {
  return PairVector{__builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high.raw, low.raw))};
}

/// 16 elements of two rows rounded likewise: the pairs of each column.
HWY_INLINE PairVector RoundToRowPairs(Vector<float> first, Vector<float> second) {
  HWY_ALIGN static constexpr uint16_t kInterleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(static_cast<const void*>(kInterleave));
  return PairVector{_mm512_permutexvar_epi16(order, RoundToPairs(first, second).raw)};
}

HWY_INLINE const uint16_t* StoredBits(const StoredRows& rows, int64_t r, int64_t c) {
  return static_cast<const uint16_t*>(rows.data) + r * rows.row_stride + c * rows.column_stride;
}

/// `columns` columns of row r from column `c` on, to pairs. Stored through memcpy: panels are built from them as
/// floats.
HWY_INLINE void PairsOfRow(const StoredRows& rows, int64_t r, int64_t c, int64_t columns, BFloat16Pair* out) {
  const uint16_t* in = StoredBits(rows, r, c);
  const int64_t step = rows.column_stride;
  int64_t n = 0;
  if (step == 1) {
    n = columns / 2;
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(BFloat16Pair));
  }
  for (; n < (columns + 1) / 2; ++n) {
    const uint32_t low = in[2 * n * step];
    const uint32_t high = 2 * n + 1 < columns ? in[(2 * n + 1) * step] : 0U;
    const BFloat16Pair pair{low | high << 16};
    std::memcpy(out + n, &pair, sizeof(pair));
  }
}

inline void PackPairRows(const StoredRows& rows, BFloat16Pair* out, int64_t out_stride) {
  const int64_t pairs = (rows.columns + 1) / 2;
  for (int64_t r = 0; r < rows.rows; ++r, out += out_stride) {
    PairsOfRow(rows, r, 0, rows.columns, out);
    std::fill(out + pairs, out + out_stride, BFloat16Pair{0});
  }
}

/// A panel of pairs is a panel of 32-bit elements once its rows are pairs.
inline void PackPairPanels(const StoredRows& rows, BFloat16Pair* out) {
  constexpr int64_t W = kPanel<float>;
  constexpr int64_t kPart = 64;  // pairs of a row at a time
  HWY_ALIGN BFloat16Pair part[W * kPart];
  const int64_t pairs = (rows.columns + 1) / 2;
  const bool are_words = rows.column_stride == 1 && rows.columns % 2 == 0 && rows.row_stride % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(rows.data) % sizeof(float) == 0;
  if (HWY_LIKELY(are_words)) {
    return PackPanels<float>({rows.data, DType::f32, rows.row_stride / 2, 1, rows.rows, pairs},
                             reinterpret_cast<float*>(out));
  }
  for (int64_t first = 0; first < rows.rows; first += W) {
    const int64_t count = std::min(W, rows.rows - first);
    for (int64_t pair = 0; pair < pairs; pair += kPart) {
      const int64_t width = std::min(kPart, pairs - pair);
      for (int64_t r = 0; r < count; ++r) {
        PairsOfRow(rows, first + r, 2 * pair, std::min(2 * width, rows.columns - 2 * pair), part + r * kPart);
      }
      PackPanels<float>({part, DType::f32, kPart, 1, count, width}, reinterpret_cast<float*>(out));
      out += width * W;
    }
  }
}

/// One vector of stored columns as integers, 0 beyond the last row or column.
HWY_INLINE PairVector LoadStored(const StoredRows& rows, int64_t r, int64_t c) {
  const hn::Rebind<uint16_t, Tag<float>> dh;
  if (r >= rows.rows) return hn::Zero(PairTag());
  if (rows.column_stride == 1 && c + kLanes<float> <= rows.columns) {
    return hn::PromoteTo(PairTag(), hn::LoadU(dh, StoredBits(rows, r, c)));
  }
  HWY_ALIGN uint16_t part[kLanes<float>] = {};
  for (int64_t n = 0; n < std::min(kLanes<float>, rows.columns - c); ++n) part[n] = *StoredBits(rows, r, c + n);
  return hn::PromoteTo(PairTag(), hn::Load(dh, part));
}

/// The elements that products of pairs can take, 0 for others; `lost` collects what was not 0 and became so.
HWY_INLINE PairVector KeepPaired(PairVector x, PairVector& lost) {
  const PairTag du;
  const auto magnitude = hn::And(x, hn::Set(du, 0x7FFFu));
  const auto smallest = hn::Set(du, std::bit_cast<uint32_t>(kSmallestPaired) >> 16);
  const auto largest = hn::Set(du, std::bit_cast<uint32_t>(kLargestPaired) >> 16);
  const auto fits = hn::Eq(hn::Min(hn::Max(magnitude, smallest), largest), magnitude);
  lost = hn::Or(lost, hn::IfThenZeroElse(fits, magnitude));
  return hn::IfThenElseZero(fits, x);
}

inline int64_t PackRowPairs(const StoredRows& rows, BFloat16Pair* out, int64_t out_stride, int64_t* found) {
  const PairTag du;
  int64_t count = 0;
  for (int64_t r = 0; r < rows.rows; r += 2, out += out_stride) {
    PairVector lost[2] = {hn::Zero(du), hn::Zero(du)};
    for (int64_t c = 0; c < out_stride; c += kLanes<float>) {
      const auto low = KeepPaired(LoadStored(rows, r, c), lost[0]);
      const auto high = KeepPaired(LoadStored(rows, r + 1, c), lost[1]);
      StorePairs(hn::Or(low, hn::ShiftLeft<16>(high)), out + c);
    }
    for (int64_t n = 0; n < 2; ++n) {
      if (HWY_UNLIKELY(!hn::AllTrue(du, hn::Eq(lost[n], hn::Zero(du))))) found[count++] = r + n;
    }
  }
  return count;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PAIRS_INL_H_
