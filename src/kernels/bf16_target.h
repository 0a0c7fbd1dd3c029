// SPDX-License-Identifier: Apache-2.0
#pragma once

// First include of a file with kernels for AVX3 and the bf16 dot product, an instruction set of its own that Highway
// 1.0.3 does not know. It is compiled as Highway's AVX3 with one attribute more, into a namespace of its own: the same
// templates exist for AVX3, and one must not stand for the other.
//
// QKV_AVX3_BF16 is defined where compiler and processor family can have it; files are empty otherwise.
#include "kernels/disabled_targets.h"
// disabled_targets.h must come first.
#include <hwy/detect_targets.h>

#if HWY_ARCH_X86_64 && (HWY_TARGETS & HWY_AVX3) && (HWY_COMPILER_GCC_ACTUAL >= 1200 || HWY_COMPILER_CLANG >= 1400)
#define QKV_AVX3_BF16 1

#undef HWY_TARGET
#define HWY_TARGET HWY_AVX3
#include <hwy/highway.h>

#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16"
#undef HWY_NAMESPACE
#define HWY_NAMESPACE N_AVX3_BF16

namespace hwy::N_AVX3_BF16 {
using namespace N_AVX3;  // NOLINT(google-build-using-namespace)
}  // namespace hwy::N_AVX3_BF16
#endif
