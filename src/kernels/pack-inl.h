// SPDX-License-Identifier: Apache-2.0
// Stored rows (any floating dtype, any strides) to the two packed forms the products read.
#if defined(QKV_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_PACK_INL_H_
#undef QKV_PACK_INL_H_
#else
#define QKV_PACK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/matmul_stage-inl.h"
#include "kernels/stored-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE T Widen(double x) {
  return static_cast<T>(x);
}
template <class T>
HWY_INLINE T Widen(float x) {
  return static_cast<T>(x);
}
template <class T>
HWY_INLINE T Widen(BFloat16 x) {
  return static_cast<T>(to_float(x));
}
template <class T>
HWY_INLINE T Widen(Float16 x) {
  return static_cast<T>(to_float(x));
}

template <class T, class Stored>
HWY_INLINE void WidenRow(const StoredRows& rows, int64_t row, T* HWY_RESTRICT out) {
  const Stored* HWY_RESTRICT in = static_cast<const Stored*>(rows.data) + row * rows.row_stride;
  if (rows.column_stride == 1) {
    for (int64_t c = 0; c < rows.columns; ++c) out[c] = Widen<T>(in[c]);
  } else {
    for (int64_t c = 0; c < rows.columns; ++c) out[c] = Widen<T>(in[c * rows.column_stride]);
  }
}

HWY_INLINE void WidenHalfRow(const uint16_t* HWY_RESTRICT in, int64_t columns, float* HWY_RESTRICT out) {
  int64_t c = 0;
  for (; c + kLanes<float> <= columns; c += kLanes<float>) {
    hn::StoreU(StoredFloat16::load(in + c), Tag<float>(), out + c);
  }
  for (; c < columns; ++c) out[c] = to_float(Float16{in[c]});
}

template <class T>
HWY_INLINE void WidenAnyRow(const StoredRows& rows, int64_t row, T* HWY_RESTRICT out) {
  switch (rows.dtype) {
    case DType::f64: WidenRow<T, double>(rows, row, out); return;
    case DType::bf16: WidenRow<T, BFloat16>(rows, row, out); return;
    case DType::f16:
      if constexpr (sizeof(T) == sizeof(float)) {
        if (rows.column_stride == 1) {
          return WidenHalfRow(static_cast<const uint16_t*>(rows.data) + row * rows.row_stride, rows.columns, out);
        }
      }
      WidenRow<T, Float16>(rows, row, out);
      return;
    default: WidenRow<T, float>(rows, row, out); return;
  }
}

/// x - x is 0 for finite x, else NaN. In four sums, which do not wait for each other.
template <class T>
bool AllFinite(const T* HWY_RESTRICT values, int64_t n) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  Vector<T> sum[4];
  for (auto& s : sum) s = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * N <= n; i += 4 * N) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) {
      const auto x = hn::LoadU(d, values + i + v * N);
      sum[v] = hn::Add(sum[v], hn::Sub(x, x));
    }
  }
  for (; i < n; i += N) {
    const auto x = hn::LoadU(d, values + i);
    sum[0] = hn::Add(sum[0], hn::Sub(x, x));
  }
  const auto all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  return hn::AllTrue(d, hn::Eq(all, hn::Zero(d)));
}

/// Rows to T, padded with zeros. Whole vectors are written where rows are made of them.
template <class T>
HWY_INLINE void WidenRows(const StoredRows& rows, T* out, int64_t out_stride) {
  const bool is_double = rows.dtype == DType::f64;
  if (out_stride % kLanes<T> == 0 && is_double == std::is_same_v<T, double>) {
    return Stage(rows, out, out_stride, out_stride);
  }
  for (int64_t r = 0; r < rows.rows; ++r, out += out_stride) {
    WidenAnyRow<T>(rows, r, out);
    std::fill(out + rows.columns, out + out_stride, T{0});
  }
}

/// Some rows at a time, so that they are looked at while they are in L1.
template <class T>
int64_t PackRows(const StoredRows& rows, T* out, int64_t out_stride, int64_t* found) {
  constexpr int64_t kTogether = 2 * kLanes<T>;
  int64_t count = 0;
  for (int64_t first = 0; first < rows.rows; first += kTogether) {
    StoredRows part = rows;
    part.data = static_cast<const char*>(rows.data) + first * rows.row_stride * size_of(rows.dtype);
    part.rows = std::min(kTogether, rows.rows - first);
    WidenRows(part, out + first * out_stride, out_stride);
    for (int64_t r = first; found != nullptr && r < first + part.rows; ++r) {
      T* row = out + r * out_stride;
      if (HWY_LIKELY(AllFinite(row, out_stride))) continue;
      found[count++] = r;
      for (int64_t c = 0; c < rows.columns; ++c) {
        if (!std::isfinite(row[c])) row[c] = 0;
      }
    }
  }
  return count;
}

/// A panel is the matrix of its rows turned over: squares are transposed in registers, rows that follow each other in
/// memory are copied.
template <class T>
void PackPanels(const StoredRows& rows, T* out) {
  constexpr int64_t W = kPanel<T>;
  for (int64_t first = 0; first < rows.rows; first += W, out += rows.columns * W) {
    const char* data = static_cast<const char*>(rows.data) + first * rows.row_stride * size_of(rows.dtype);
    const int64_t count = std::min(W, rows.rows - first);
    const int64_t padded = (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
    Stage({data, rows.dtype, rows.column_stride, rows.row_stride, rows.columns, count}, out, W, padded);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_PACK_INL_H_
