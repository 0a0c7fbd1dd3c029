// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "machine_kernels.h"
#include "qkv/tensor/dtype.h"
#include "qkv/tensor/tensor.h"

namespace qkv::bench {

/// What is known without measuring.
struct MachineFacts {
  std::string cpu;       ///< model name
  std::string target;    ///< instruction set in use
  std::string compiler;  ///< of this program and the library
  std::string build;     ///< optimised or not
  std::string version;   ///< of qkv
  int threads = 1;       ///< CPUs the process may use
};
MachineFacts machine_facts();

/// Measures what bounds every call on this machine, with the instruction set in use. Each call takes some milliseconds
/// and keeps the best of many short repetitions, so that it can be repeated between the timings of the cases.
class MachineMeter {
 public:
  MachineMeter();
  /// Operations a second of multiply-adds in f64 or f32, or of bf16 dot products; 0 where there are none.
  double multiply_add(DType dtype, int threads) const;
  /// Bytes a second of reading a buffer far larger than the last cache.
  double read_bandwidth(int threads) const { return read_bandwidth(threads, buffer_bytes(), 2); }
  /// The same of reading only about `bytes` of it, over and over: as fast as the caches that hold so much allow.
  double read_bandwidth(int threads, int64_t bytes, int repetitions) const;
  /// Seconds of a parallel_for with an empty body for each thread: the median of many.
  double fork_join(int threads) const;
  /// Size of the buffer that read_bandwidth reads.
  int64_t buffer_bytes() const { return buffer_.view().elements(); }

 private:
  MachineKernels kernels_;
  Tensor buffer_;
};

/// Seconds since some fixed moment.
double now();

}  // namespace qkv::bench
