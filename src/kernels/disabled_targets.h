// SPDX-License-Identifier: Apache-2.0
#pragma once

// Instruction sets that would only repeat another's code: SSSE3 beside SSE4, and AVX3_DL, whose extensions these
// kernels do not use, beside AVX3. Sizeless vectors (SVE, RVV) cannot form arrays, which the register tiles are: NEON
// serves those machines.
// A build for one machine may name others, which compiles faster.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
