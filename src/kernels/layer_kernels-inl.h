// SPDX-License-Identifier: Apache-2.0
// The table of layer kernels of one instruction set and compute type.
#if defined(QKV_LAYER_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_LAYER_KERNELS_INL_H_
#undef QKV_LAYER_KERNELS_INL_H_
#else
#define QKV_LAYER_KERNELS_INL_H_
#endif

#include "kernels/elementwise-inl.h"
#include "kernels/normalize-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
void Widen(const StoredRows& source, T* out, int64_t padded) {
  Stage<T>(source, out, padded, padded);
}

template <class T>
constexpr LayerKernels<T> MakeLayerKernels() {
  static_assert(kLayerPadding % kLanes<T> == 0 && kLayerColumns % kWordBits == 0);
  return {
      .normalize = Normalize<T>,
      .normalize_backward = NormalizeBackward<T>,
      .activate = ActivateKernel<T>,
      .activate_backward = ActivateBackwardKernel<T>,
      .add = AddKernel<T>,
      .dropout = DropoutKernel<T>,
      .rotate = Rotate<T>,
      .widen = Widen<T>,
  };
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_LAYER_KERNELS_INL_H_
