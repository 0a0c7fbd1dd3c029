// SPDX-License-Identifier: Apache-2.0
// A rectangle of a stored matrix (any floating dtype, any strides) to rows of the compute type.
//
// Rows that are contiguous are copied a vector at a time; columns that are contiguous are transposed in registers, a
// square of lanes at a time; anything else goes element by element.
#if defined(QKV_MATMUL_STAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_STAGE_INL_H_
#undef QKV_MATMUL_STAGE_INL_H_
#else
#define QKV_MATMUL_STAGE_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/stored-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Into L2 and not L1, where columns at a power of two apart would evict each other before they are used.
HWY_INLINE void PrefetchToL2(const void* address) { __builtin_prefetch(address, 0, 2); }

/// Rows ahead of the copy that are asked for: about a microsecond of reading, more than memory takes to answer.
constexpr int64_t kRowsAhead = 16;
/// The same for columns that are transposed, in elements of each column.
constexpr int64_t kElementsAhead = 128;

/// One vector of which only `count` elements, `stride` apart, are there; the others are 0.
template <class S, class T>
HWY_INLINE Vector<T> LoadSome(const typename S::Element* from, int64_t stride, int64_t count) {
  HWY_ALIGN typename S::Element some[kLanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = from[i * stride];
  return S::load(some);
}

template <class S, class T>
void StageContiguousRows(const StoredRows& source, T* HWY_RESTRICT out, int64_t out_stride, int64_t padded) {
  using Element = typename S::Element;
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  const int64_t whole = source.columns / N * N;
  for (int64_t r = 0; r < source.rows; ++r, out += out_stride) {
    const Element* HWY_RESTRICT in = static_cast<const Element*>(source.data) + r * source.row_stride;
    int64_t c = 0;
    for (; c < whole; c += N) {
      PrefetchToL2(in + c + kRowsAhead * source.row_stride);
      hn::StoreU(S::load(in + c), d, out + c);
    }
    if (c < source.columns) {
      hn::StoreU(LoadSome<S, T>(in + c, 1, source.columns - c), d, out + c);
      c += N;
    }
    for (; c < padded; c += N) hn::StoreU(hn::Zero(d), d, out + c);
  }
}

template <class S, class T>
void StageAnyRows(const StoredRows& source, T* HWY_RESTRICT out, int64_t out_stride, int64_t padded) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  for (int64_t r = 0; r < source.rows; ++r, out += out_stride) {
    const auto* in = static_cast<const typename S::Element*>(source.data) + r * source.row_stride;
    for (int64_t c = 0; c < padded; c += N) {
      const int64_t count = std::clamp<int64_t>(source.columns - c, 0, N);
      hn::StoreU(LoadSome<S, T>(in + c * source.column_stride, source.column_stride, count), d, out + c);
    }
  }
}

/// N columns from (row, column) on, of which `count` are there, loaded down the rows and transposed into N rows of out.
template <class S, bool kAll, class T>
HWY_INLINE void StageSquare(const typename S::Element* HWY_RESTRICT in, int64_t column_stride, int64_t count,
                            T* HWY_RESTRICT out, int64_t out_stride) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  Vector<T> square[N];
#pragma GCC unroll 16
  for (int64_t i = 0; i < N; ++i) {
    const auto* column = in + i * column_stride;
    if (kAll || i < count) {
      PrefetchToL2(column + kElementsAhead);
      square[i] = S::load(column);
    } else {
      square[i] = hn::Zero(d);
    }
  }
  TransposeSquare<T>(square);
#pragma GCC unroll 16
  for (int64_t i = 0; i < N; ++i) hn::StoreU(square[i], d, out + i * out_stride);
}

/// Rows are the contiguous axis: N columns at a time, squares down the rows. Returns the first row that is left over.
template <class S, class T, int64_t kRowsPerLane>
int64_t StageSquares(const StoredRows& source, T* HWY_RESTRICT out, int64_t out_stride, int64_t padded) {
  constexpr int64_t N = kLanes<T>;
  constexpr int64_t kStep = N * kRowsPerLane;
  const int64_t whole = source.rows / kStep * kStep;
  for (int64_t c = 0; c < padded; c += N) {
    const int64_t count = std::clamp<int64_t>(source.columns - c, 0, N);
    const auto* in = static_cast<const typename S::Element*>(source.data) + c * source.column_stride;
    for (int64_t r = 0; r < whole; r += kStep) {
      T* to = out + r / kRowsPerLane * out_stride + c;
      if (HWY_LIKELY(count == N)) {
        StageSquare<S, true>(in + r, source.column_stride, count, to, out_stride);
      } else {
        StageSquare<S, false>(in + r, source.column_stride, count, to, out_stride);
      }
    }
  }
  return whole;
}

template <class S, class T>
void StageContiguousColumns(const StoredRows& source, T* out, int64_t out_stride, int64_t padded) {
  const int64_t done = StageSquares<S, T, 1>(source, out, out_stride, padded);
  StoredRows rest = source;
  rest.data = static_cast<const typename S::Element*>(source.data) + done;
  rest.rows -= done;
  StageAnyRows<S, T>(rest, out + done * out_stride, out_stride, padded);
}

template <class S, class T>
void StageAs(const StoredRows& source, T* out, int64_t out_stride, int64_t padded) {
  if (source.column_stride == 1) {
    StageContiguousRows<S, T>(source, out, out_stride, padded);
  } else if (source.row_stride == 1) {
    StageContiguousColumns<S, T>(source, out, out_stride, padded);
  } else {
    StageAnyRows<S, T>(source, out, out_stride, padded);
  }
}

template <class T>
void Stage(const StoredRows& source, T* out, int64_t out_stride, int64_t padded) {
  if constexpr (std::is_same_v<T, double>) {
    StageAs<StoredWhole<double>, double>(source, out, out_stride, padded);
  } else {
    switch (source.dtype) {
      case DType::bf16: return StageAs<StoredBFloat16, float>(source, out, out_stride, padded);
      case DType::f16: return StageAs<StoredFloat16, float>(source, out, out_stride, padded);
      default: return StageAs<StoredWhole<float>, float>(source, out, out_stride, padded);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_STAGE_INL_H_
