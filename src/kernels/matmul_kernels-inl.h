// SPDX-License-Identifier: Apache-2.0
// The matmul table of one instruction set and compute type.
#if defined(QKV_MATMUL_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_KERNELS_INL_H_
#undef QKV_MATMUL_KERNELS_INL_H_
#else
#define QKV_MATMUL_KERNELS_INL_H_
#endif

#include "kernels/matmul_finish-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
void ProductOfBlock(const MatmulProduct<T>& p) {
  const int64_t vectors = (p.columns + kLanes<T> - 1) / kLanes<T>;
  const ProductOperands<T> operands = {p.a, p.a_row, p.a_step, p.b, p.b_step, p.sums, p.sums_row, p.steps};
  if (p.add) {
    Product<Into::kAdd, T>(operands, p.rows, vectors);
  } else {
    Product<Into::kSet, T>(operands, p.rows, vectors);
  }
}

template <class T>
constexpr MatmulKernels<T> MakeMatmulKernels() {
  return {
      .lanes = kLanes<T>,
      .panel_width = kPanel<T>,
      .stage = Stage<T>,
      .product = ProductOfBlock<T>,
      .finish = Finish<T>,
  };
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_KERNELS_INL_H_
