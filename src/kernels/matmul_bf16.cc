// SPDX-License-Identifier: Apache-2.0
// The matmul kernels on pairs of bf16, for the instruction set AVX3_BF16.
#include "kernels/bf16_target.h"
// bf16_target.h must come first.
#include "kernels/registry.h"

#ifdef QKV_AVX3_BF16
#include "kernels/matmul_kernels-inl.h"
#include "kernels/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {
namespace {

constexpr MatmulPairKernels kKernels = {
    .stage_pair_rows = PackPairRows,
    .product = ProductOfBlock<float, BFloat16Pair>,
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
