// SPDX-License-Identifier: Apache-2.0
// A square of lanes transposed in registers: as many vectors as a vector has lanes.
//
// Inside 128-bit blocks rows interleave (by 4 bytes, then by 8); then whole blocks change places. With four blocks a
// vector that is 4 shuffles and a blend for each vector of 16 floats.
#if defined(QKV_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_TRANSPOSE_INL_H_
#undef QKV_TRANSPOSE_INL_H_
#else
#define QKV_TRANSPOSE_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <class T>
HWY_INLINE void TransposeSquare(Vector<T> (&)[1]) {}

#else

/// Lanes of T in a 128-bit block.
template <class T>
constexpr int kBlockLanes = 16 / static_cast<int>(sizeof(T));

/// kBlockLanes vectors hold rows; on return vector j holds, in each of its blocks, column
/// j of that block of all the rows.
template <class T>
HWY_INLINE void TransposeInBlocks(Vector<T>* HWY_RESTRICT x) {
  const Tag<T> d;
  if constexpr (sizeof(T) == 8) {
    const auto low = hn::InterleaveLower(d, x[0], x[1]);
    x[1] = hn::InterleaveUpper(d, x[0], x[1]);
    x[0] = low;
  } else {
    const hn::Repartition<uint64_t, Tag<T> > wide;
    const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, x[0], x[1]));
    const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, x[0], x[1]));
    const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, x[2], x[3]));
    const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, x[2], x[3]));
    x[0] = hn::BitCast(d, hn::InterleaveLower(wide, low01, low23));
    x[1] = hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23));
    x[2] = hn::BitCast(d, hn::InterleaveLower(wide, high01, high23));
    x[3] = hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23));
  }
}

/// The square x[row][column] becomes x[column][row], in place. Bits of any type may travel as T.
template <class T>
HWY_INLINE void TransposeSquare(Vector<T> (&x)[kLanes<T>]) {
  const Tag<T> d;
  constexpr int L = kBlockLanes<T>;
  constexpr int kBlocks = static_cast<int>(kLanes<T>) / L;
#pragma GCC unroll 16
  for (int group = 0; group < kBlocks; ++group) TransposeInBlocks<T>(x + group * L);
  if constexpr (kBlocks == 2) {
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) {
      const auto low = hn::ConcatLowerLower(d, x[L + j], x[j]);
      x[L + j] = hn::ConcatUpperUpper(d, x[L + j], x[j]);
      x[j] = low;
    }
  } else if constexpr (kBlocks == 4) {
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) {
      Vector<T> even[2];  // blocks 0 and 2 of groups 0 and 1, of groups 2 and 3
      Vector<T> odd[2];
      for (int pair = 0; pair < 2; ++pair) {
        const auto a = x[2 * pair * L + j];
        const auto b = x[(2 * pair + 1) * L + j];
        even[pair] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
        odd[pair] = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
      }
      x[j] = hn::ConcatLowerLower(d, even[1], even[0]);
      x[L + j] = hn::ConcatLowerLower(d, odd[1], odd[0]);
      x[2 * L + j] = hn::ConcatUpperUpper(d, even[1], even[0]);
      x[3 * L + j] = hn::ConcatUpperUpper(d, odd[1], odd[0]);
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_TRANSPOSE_INL_H_
