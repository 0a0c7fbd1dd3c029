// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention_kernels.h"

namespace qkv {

/// Each instruction set of a kernel file announces itself at start-up; dispatch, tests and benchmarks read the table.
struct RegisterKernels {
  RegisterKernels(int64_t target, const AttentionKernels<float>* f32);
  RegisterKernels(int64_t target, const AttentionKernels<double>* f64);
};

}  // namespace qkv
