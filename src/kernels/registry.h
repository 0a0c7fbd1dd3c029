// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/layer_kernels.h"

namespace qkv {

/// Each instruction set of a kernel file announces itself at start-up; dispatch, tests and benchmarks read the table.
struct RegisterKernels {
  RegisterKernels(int64_t target, const AttentionKernels<float>* f32);
  RegisterKernels(int64_t target, const AttentionKernels<double>* f64);
  explicit RegisterKernels(const PairKernels* bf16);  ///< of AVX3_BF16
  RegisterKernels(int64_t target, const MatmulKernels<float>* f32);
  RegisterKernels(int64_t target, const MatmulKernels<double>* f64);
  explicit RegisterKernels(const MatmulPairKernels* bf16);  ///< of AVX3_BF16
  RegisterKernels(int64_t target, const DerivativeKernels<float>* f32);
  RegisterKernels(int64_t target, const DerivativeKernels<double>* f64);
  RegisterKernels(int64_t target, const LayerKernels<float>* f32);
  RegisterKernels(int64_t target, const LayerKernels<double>* f64);
};

/// Called by the table so that a static library keeps the files that announce themselves.
void link_attention_f32();
void link_attention_f64();
void link_attention_bf16();
void link_matmul_f32();
void link_matmul_f64();
void link_matmul_bf16();
void link_derivatives_f32();
void link_derivatives_f64();
void link_layers_f32();
void link_layers_f64();

}  // namespace qkv
