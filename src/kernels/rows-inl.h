// SPDX-License-Identifier: Apache-2.0
// One row of a stored matrix as whole vectors of the compute type, and back.
#if defined(QKV_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ROWS_INL_H_
#undef QKV_ROWS_INL_H_
#else
#define QKV_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/matmul_stage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// f32 to bf16 in the low half of each lane, to nearest even; NaN stays a quiet NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Tag<float>>> RoundToBFloat16(Vector<float> x) {
  const hn::RebindToUnsigned<Tag<float>> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFFu)), hn::Set(du, 0x7F800000u));
  return hn::IfThenElse(is_nan, quiet, rounded);
}

/// Where a row is stored.
struct RowTarget {
  void* row;
  DType dtype;
  int64_t column_stride;
};

HWY_INLINE RowTarget TargetRow(const StoredRows& operand, int64_t row) {
  const char* first = static_cast<const char*>(operand.data) + row * operand.row_stride * size_of(operand.dtype);
  return {const_cast<char*>(first), operand.dtype, operand.column_stride};
}

/// Stores `columns` values, of which `values` holds whole vectors, with one rounding.
template <class T>
HWY_INLINE void StoreRow(const T* HWY_RESTRICT values, int64_t columns, const RowTarget& to) {
  if (to.column_stride == 1 && to.dtype == DTypeOf<T>::value) {
    std::memcpy(to.row, values, static_cast<size_t>(columns) * sizeof(T));
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (to.column_stride == 1 && to.dtype == DType::bf16) {
      const hn::RebindToSigned<Tag<float>> di;
      const hn::Rebind<uint16_t, Tag<float>> dh;
      constexpr int64_t N = kLanes<float>;
      for (int64_t c = 0; c < columns; c += N) {
        HWY_ALIGN uint16_t narrow[N];
        const auto words = hn::BitCast(di, RoundToBFloat16(hn::LoadU(Tag<float>(), values + c)));
        hn::StoreU(hn::DemoteTo(dh, words), dh, narrow);
        std::memcpy(static_cast<uint16_t*>(to.row) + c, narrow,
                    static_cast<size_t>(std::min(N, columns - c)) * sizeof(uint16_t));
      }
      return;
    }
  }
  const int64_t size = size_of(to.dtype) * to.column_stride;
  for (int64_t c = 0; c < columns; ++c) store_as<T>(to.dtype, static_cast<char*>(to.row) + c * size, values[c]);
}

/// Rows of values, which hold whole vectors, times their factors plus 0.
template <class T>
void StoreRows(const T* HWY_RESTRICT values, int64_t values_stride, const T* HWY_RESTRICT factors,
               const StoredRows& to) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  const bool in_place = to.column_stride == 1 && to.dtype == DTypeOf<T>::value;
  for (int64_t r = 0; r < to.rows; ++r, values += values_stride) {
    const RowTarget row = TargetRow(to, r);
    const int64_t step = row.column_stride * size_of(row.dtype);
    const auto factor = hn::Set(d, factors[r]);
    for (int64_t c = 0; c < to.columns; c += N) {
      const auto x = hn::Add(hn::Mul(hn::LoadU(d, values + c), factor), hn::Zero(d));
      if (HWY_LIKELY(in_place && c + N <= to.columns)) {
        hn::StoreU(x, d, static_cast<T*>(row.row) + c);
        continue;
      }
      HWY_ALIGN T part[N];
      hn::Store(x, d, part);
      StoreRow(part, std::min(N, to.columns - c),
               {static_cast<char*>(row.row) + c * step, row.dtype, row.column_stride});
    }
  }
}

/// Columns [0, padded) of one row of an operand: where it lies, or in `buffer`.
template <class T>
HWY_INLINE const T* RowOf(const StoredRows& operand, int64_t row, int64_t columns, int64_t padded, T* buffer) {
  StoredRows one = operand;
  one.data = static_cast<const char*>(operand.data) + row * operand.row_stride * size_of(operand.dtype);
  one.rows = 1;
  one.row_stride = 0;  // one row: nothing to transpose
  one.columns = columns;
  if (one.column_stride == 1 && one.dtype == DTypeOf<T>::value && columns == padded) {
    return static_cast<const T*>(one.data);
  }
  Stage<T>(one, buffer, padded, padded);
  return buffer;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ROWS_INL_H_
