// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace qkv::bench {

/// Loops that show what the machine can do, compiled once per instruction set.
struct MachineKernels {
  const char* target;  ///< the instruction set these were compiled for
  /// Independent chains of fused multiply-adds held in registers. The result only keeps the loop alive.
  double (*multiply_add_f32)(int64_t iterations);
  double (*multiply_add_f64)(int64_t iterations);
  int64_t operations_f32;  ///< per iteration; a multiply-add counts two
  int64_t operations_f64;
  /// Reads every byte of a 64-byte aligned block once; `bytes` is a multiple of kReadStep.
  uint64_t (*read)(const void* data, int64_t bytes);
};

inline constexpr int64_t kReadStep = 4096;

/// The loops for the named instruction set, or for the best one below it that this program has code for.
MachineKernels machine_kernels(const std::string& target);

}  // namespace qkv::bench
