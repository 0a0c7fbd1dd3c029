// SPDX-License-Identifier: Apache-2.0
// The matmul table of one instruction set and compute type.
#if defined(QKV_MATMUL_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_KERNELS_INL_H_
#undef QKV_MATMUL_KERNELS_INL_H_
#else
#define QKV_MATMUL_KERNELS_INL_H_
#endif

#include "kernels/matmul_columns-inl.h"
#include "kernels/matmul_finish-inl.h"
#include "kernels/matmul_pairs-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T, class E>
void ProductOfBlock(const MatmulProduct<T>& p) {
  const int64_t vectors = (p.columns + kLanes<T> - 1) / kLanes<T>;
  const ProductOperands<T, E> operands = {reinterpret_cast<const typename ProductStep<T, E>::A*>(p.a),
                                          p.a_row,
                                          p.a_step,
                                          reinterpret_cast<const E*>(p.b),
                                          p.b_step,
                                          p.sums,
                                          p.sums_row,
                                          p.steps};
  switch (p.into) {
    case MatmulInto::set: return Product<Into::kSet, T, E>(operands, p.rows, vectors);
    case MatmulInto::add: return Product<Into::kAdd, T, E>(operands, p.rows, vectors);
    case MatmulInto::go_on: return Product<Into::kContinue, T, E>(operands, p.rows, vectors);
  }
}

template <class T>
constexpr MatmulKernels<T> MakeMatmulKernels() {
  MatmulKernels<T> kernels = {
      .lanes = kLanes<T>,
      .panel_width = kPanel<T>,
      .stage = Stage<T>,
      .product = ProductOfBlock<T, T>,
      .finish = Finish<T>,
      .product_of_columns = ProductOfColumns<T>,
  };
  if constexpr (std::is_same_v<T, float>) {
    kernels.stage_pairs = StagePairs;
    kernels.product_of_pairs = ProductOfBlock<float, WidenedPair>;
  }
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_KERNELS_INL_H_
