// SPDX-License-Identifier: Apache-2.0
// The attention kernels on pairs of bf16, for the instruction set AVX3_BF16.
#include "kernels/bf16_target.h"
// bf16_target.h must come first.
#include "kernels/registry.h"

#ifdef QKV_AVX3_BF16
#include "kernels/attention_scores-inl.h"
#include "kernels/backward_pairs-inl.h"
#include "kernels/decode_pairs-inl.h"
#include "kernels/forward_pairs-inl.h"
#include "kernels/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {
namespace {

constexpr PairKernels kKernels = {
    .pack_pair_rows = PackPairRows,
    .pack_pair_panels = PackPairPanels,
    .pack_row_pairs = PackRowPairs,
    .raw_scores = RawScores<float, BFloat16Pair>,
    .forward_tile = ForwardOfTile<float, BFloat16Pair>,
    .decode_block = DecodePairs,
    .delta_sums = DeltaSums<float, BFloat16Pair>,
    .backward_tile = BackwardOfTile<float, BFloat16Pair>,
    .query_gradients = QueryGradients<float, BFloat16Pair>,
};
const RegisterKernels kRegistered(&kKernels);

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();
#endif  // QKV_AVX3_BF16

namespace qkv {

void link_attention_bf16() {}

}  // namespace qkv
