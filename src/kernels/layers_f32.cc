// SPDX-License-Identifier: Apache-2.0
// The layer kernels in f32, once per instruction set.
#include "kernels/disabled_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layers_f32.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include "kernels/layer_kernels-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {
namespace {

constexpr LayerKernels<float> kKernels = MakeLayerKernels<float>();
const RegisterKernels kRegistered(HWY_TARGET, &kKernels);

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv {

void link_layers_f32() {}

}  // namespace qkv
#endif
