// SPDX-License-Identifier: Apache-2.0
// The matmul kernels on pairs of bf16, for the instruction set AVX3_BF16.
#include "kernels/bf16_target.h"
// bf16_target.h must come first.
#include "kernels/registry.h"

#ifdef QKV_AVX3_BF16
#include "kernels/matmul_kernels-inl.h"
#include "kernels/pair_squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {
namespace {

void ProductOfPairColumns(const PairScores& product, const StoredRows& columns) {
  const uint16_t* begin[kLanes<float>];
  BeginColumns(columns, begin, kLanes<float>);
  EachAhead ahead;
  ForRowRuns(product.rows, PairScoreRun<EachAhead>{product, columns.columns, begin, 0, ahead});
}

constexpr MatmulPairKernels kKernels = {
    .stage_pair_rows = PackPairRows,
    .product = ProductOfBlock<float, BFloat16Pair>,
    .product_of_columns = ProductOfPairColumns,
};
const RegisterKernels kRegistered(&kKernels);

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();
#endif  // QKV_AVX3_BF16

namespace qkv {

void link_matmul_bf16() {}

}  // namespace qkv
