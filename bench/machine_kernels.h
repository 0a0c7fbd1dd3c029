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
  double (*dot_bf16)(int64_t iterations);  ///< chains of bf16 dot products summed in f32; null where there are none
  int64_t operations_f32;                  ///< per iteration; a multiply-add counts two
  int64_t operations_f64;
  int64_t operations_bf16;
  /// Reads every byte of a 64-byte aligned block of kReadBlock bytes once.
  uint64_t (*read)(const void* block);
};

/// A block is read as several streams at once, because one alone does not keep enough lines on their way: on a Zen 4
/// core one stream reaches 21 GB/s, four 27, eight 30, and software prefetching lowers each of them. Streams are an odd
/// number of pages apart, so that they do not meet in one set of a cache.
inline constexpr int64_t kReadStreams = 8;
inline constexpr int64_t kReadBlock = kReadStreams * 33 * 4096;

/// The loops for the named instruction set, or for the best one below it that this program has code for.
MachineKernels machine_kernels(const std::string& target);

}  // namespace qkv::bench
