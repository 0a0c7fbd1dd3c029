// SPDX-License-Identifier: Apache-2.0
// Lanes of many rows at once: one vector a row in, one number a row out.
//
// Rows are combined in pairs: half of the lanes of either, so that after log2(lanes) rounds one vector holds a result
// per row. Three instructions a row, a third of reducing each by itself. A row's lanes are combined as neighbours, then
// as neighbours of the results: the order does not depend on the rows beside it.
#if defined(QKV_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_REDUCE_INL_H_
#undef QKV_REDUCE_INL_H_
#else
#define QKV_REDUCE_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

struct SumOf {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct LargestOf {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};
struct SmallestOf {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Min(a, b);
  }
};

/// Rows rounded up to whole vectors: what the arrays of ReduceRows hold.
template <class T>
constexpr int64_t PaddedRows(int64_t rows) {
  return (rows + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

/// results[r] = lanes[r, :] combined. lanes [PaddedRows(rows), kLanes] and results [PaddedRows(rows)] are aligned; what
/// lies beyond the rows may be anything.
template <class Combine, class T>
HWY_INLINE void ReduceRows(const T* HWY_RESTRICT lanes, int64_t rows, T* HWY_RESTRICT results) {
  constexpr int64_t N = kLanes<T>;
  const Tag<T> d;
  for (int64_t r = 0; r < rows; r += N) {
    Vector<T> v[N];
#pragma GCC unroll 16
    for (int64_t i = 0; i < N; ++i) v[i] = hn::Load(d, lanes + (r + i) * N);
#if HWY_TARGET != HWY_SCALAR
#pragma GCC unroll 4
    for (int64_t half = N / 2; half > 0; half /= 2) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < half; ++i) {
        v[i] = Combine()(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]), hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
      }
    }
#endif
    hn::Store(v[0], d, results + r);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_REDUCE_INL_H_
