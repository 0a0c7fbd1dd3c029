// SPDX-License-Identifier: Apache-2.0
// The end of a matrix product: bias, activation, gate and residual on finished sums, and the one rounding into C.
#if defined(QKV_MATMUL_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_FINISH_INL_H_
#undef QKV_MATMUL_FINISH_INL_H_
#else
#define QKV_MATMUL_FINISH_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "kernels/activation-inl.h"
#include "kernels/matmul_kernels.h"
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

/// `columns` values of one row of C, whole vectors of them in `values`.
template <class T>
HWY_INLINE void StoreRow(const T* HWY_RESTRICT values, int64_t columns, const MatmulFinish<T>& f, void* row) {
  if (f.c_column == 1 && f.c_dtype == DTypeOf<T>::value) {
    std::memcpy(row, values, static_cast<size_t>(columns) * sizeof(T));
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (f.c_column == 1 && f.c_dtype == DType::bf16) {
      const hn::RebindToSigned<Tag<float>> di;
      const hn::Rebind<uint16_t, Tag<float>> dh;
      constexpr int64_t N = kLanes<float>;
      for (int64_t c = 0; c < columns; c += N) {
        HWY_ALIGN uint16_t narrow[N];
        const auto words = hn::BitCast(di, RoundToBFloat16(hn::LoadU(Tag<float>(), values + c)));
        hn::StoreU(hn::DemoteTo(dh, words), dh, narrow);
        std::memcpy(static_cast<uint16_t*>(row) + c, narrow,
                    static_cast<size_t>(std::min(N, columns - c)) * sizeof(uint16_t));
      }
      return;
    }
  }
  const int64_t size = size_of(f.c_dtype) * f.c_column;
  for (int64_t c = 0; c < columns; ++c) store_as<T>(f.c_dtype, static_cast<char*>(row) + c * size, values[c]);
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

template <Activation A, class T>
void FinishAs(const MatmulFinish<T>& f) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  HWY_ALIGN T gate_row[kMatmulColumns];
  HWY_ALIGN T residual_row[kMatmulColumns];
  const int64_t padded = (f.columns + N - 1) / N * N;
  const bool is_direct = f.c_column == 1 && f.c_dtype == DTypeOf<T>::value && padded == f.columns;
  for (int64_t r = 0; r < f.rows; ++r) {
    T* sums = f.sums + r * f.sums_row;
    char* row = static_cast<char*>(f.c) + r * f.c_row * size_of(f.c_dtype);
    T* out = is_direct ? reinterpret_cast<T*>(row) : sums;
    const T* gate = f.gate.data == nullptr ? nullptr : RowOf<T>(f.gate, r, f.columns, padded, gate_row);
    const T* residual = f.residual.data == nullptr ? nullptr : RowOf<T>(f.residual, r, f.columns, padded, residual_row);
    for (int64_t c = 0; c < padded; c += N) {
      auto x = hn::Load(d, sums + c);
      // Adding 0 without a bias makes the sign of a zero sum the same, however K was padded.
      x = hn::Add(x, f.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, f.bias + c));
      Vector<T> unused;
      x = Activate<A, false, T>(x, unused);
      if (gate != nullptr) x = hn::Mul(x, hn::LoadU(d, gate + c));
      if (residual != nullptr) x = hn::Add(x, hn::LoadU(d, residual + c));
      hn::StoreU(x, d, out + c);
    }
    if (!is_direct) StoreRow<T>(sums, f.columns, f, row);
  }
}

template <class T>
void Finish(const MatmulFinish<T>& f) {
  switch (f.activation) {
    case Activation::none: return FinishAs<Activation::none, T>(f);
    case Activation::relu: return FinishAs<Activation::relu, T>(f);
    case Activation::gelu: return FinishAs<Activation::gelu, T>(f);
    case Activation::gelu_tanh: return FinishAs<Activation::gelu_tanh, T>(f);
    case Activation::silu: return FinishAs<Activation::silu, T>(f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_FINISH_INL_H_
