// SPDX-License-Identifier: Apache-2.0
// The table of derivatives of one instruction set and compute type.
#if defined(QKV_DERIVATIVE_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_DERIVATIVE_KERNELS_INL_H_
#undef QKV_DERIVATIVE_KERNELS_INL_H_
#else
#define QKV_DERIVATIVE_KERNELS_INL_H_
#endif

#include "kernels/attention_jvp-inl.h"
#include "kernels/attention_second-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
constexpr DerivativeKernels<T> MakeDerivativeKernels() {
  return {
      .tangent_scores = TangentScores<T>,
      .tangent_outputs = TangentOutputs<T>,
      .second_scores = SecondScores<T>,
      .second_gradients = SecondGradients<T>,
      .second_row_sums = SecondRowSums<T>,
      .second_key_sums = SecondKeySums<T>,
  };
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_DERIVATIVE_KERNELS_INL_H_
