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
  // Both read every byte of a 64-byte aligned block of kReadBlock bytes once. Which is faster depends on the cache that
  // holds the block, on the size of pages and on how many threads read: whoever wants to know the limit tries both.
  uint64_t (*read_in_order)(const void* block);
  uint64_t (*read_in_streams)(const void* block);
};

/// In order: one sum of f32, whose chain of additions paces the loads above what memory gives (measured on Zen 4 beyond
/// the last cache: 36 GB/s, with four sums 32). The hardware reads ahead inside a page; touching each page this much
/// earlier makes it begin in time: 28 GB/s on pages of 4 KiB, 20 without.
inline constexpr int64_t kReadPage = 4096;
inline constexpr int64_t kReadAhead = 32 * kReadPage;

/// In streams: more lines are on their way from a cache. Streams are an odd number of pages apart, so that they do not
/// meet in one set.
inline constexpr int64_t kReadStreams = 8;
inline constexpr int64_t kReadBlock = kReadStreams * 33 * 4096;

/// The loops for the named instruction set, or for the best one below it that this program has code for.
MachineKernels machine_kernels(const std::string& target);

}  // namespace qkv::bench
