// SPDX-License-Identifier: Apache-2.0
// The end of a matrix product: bias, activation, gate and residual on finished sums, and the one rounding into C.
#if defined(QKV_MATMUL_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_FINISH_INL_H_
#undef QKV_MATMUL_FINISH_INL_H_
#else
#define QKV_MATMUL_FINISH_INL_H_
#endif

#include "kernels/activation-inl.h"
#include "kernels/matmul_kernels.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

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
    if (!is_direct) StoreRow<T>(sums, f.columns, {row, f.c_dtype, f.c_column});
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
