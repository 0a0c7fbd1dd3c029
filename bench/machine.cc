// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "qkv/kernels/targets.h"
#include "qkv/support/checked.h"
#include "qkv/support/parallel.h"
#include "qkv/version.h"

namespace qkv::bench {
namespace {

// Results of measuring loops go here, so that no compiler may leave a loop out.
std::atomic<uint64_t> kept{0};

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

/// Eight times the last cache as far as the system knows it, at least 256 MiB and at most 1 GiB.
int64_t read_buffer_bytes() {
  int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::clamp<int64_t>(8 * cache, int64_t{256} << 20, int64_t{1} << 30);
}

/// Best of the repetitions, in seconds.
template <class Call>
double best_of(int repetitions, const Call& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int r = 0; r < repetitions; ++r) {
    const double start = now();
    call();
    best = std::min(best, now() - start);
  }
  return best;
}

}  // namespace

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.cpu = cpu_model();
  facts.target = chosen_target();
#ifdef __clang__
  facts.compiler = concat("clang ", __clang_version__);
#else
  facts.compiler = concat("g++ ", __VERSION__);
#endif
#ifdef __OPTIMIZE__
  facts.build = "optimised";
#else
  facts.build = "NOT optimised: the figures mean nothing";
#endif
  facts.version = version();
  facts.threads = available_threads();
  return facts;
}

MachineMeter::MachineMeter() : kernels_(machine_kernels(chosen_target())), buffer_(DType::u8, {read_buffer_bytes()}) {
  // Pages that were never written may all be one page of zeros, which would stay in the cache.
  std::memset(buffer_.mutable_view().data(), 1, static_cast<size_t>(buffer_bytes()));
}

double MachineMeter::multiply_add(DType dtype, int threads) const {
  double (*loop)(int64_t) = kernels_.multiply_add_f32;
  int64_t operations = kernels_.operations_f32;
  if (dtype == DType::f64) loop = kernels_.multiply_add_f64, operations = kernels_.operations_f64;
  if (dtype == DType::bf16) loop = kernels_.dot_bf16, operations = kernels_.operations_bf16;
  if (loop == nullptr) return 0;
  // About 0.2 ms at 4 GHz and one step a cycle: long beside a fork, short beside a time slice.
  constexpr int64_t kIterations = 40000;
  const double seconds = best_of(40, [&] {
    parallel_for(threads, threads, [&](int64_t, int) { kept += static_cast<uint64_t>(loop(kIterations)); });
  });
  return static_cast<double>(operations * kIterations * threads) / seconds;
}

double MachineMeter::read_bandwidth(int threads, int64_t bytes, int repetitions) const {
  const int64_t blocks = std::clamp<int64_t>(bytes / kReadBlock, threads, buffer_bytes() / kReadBlock);
  const char* data = static_cast<const char*>(buffer_.view().data());
  double seconds = std::numeric_limits<double>::infinity();
  for (const auto read : {kernels_.read_in_order, kernels_.read_in_streams}) {
    const double best = best_of(repetitions, [&] {
      parallel_for(blocks, threads, [&](int64_t block, int) { kept += read(data + block * kReadBlock); });
    });
    seconds = std::min(seconds, best);
  }
  return static_cast<double>(blocks * kReadBlock) / seconds;
}

double MachineMeter::fork_join(int threads) const {
  std::vector<double> seconds;
  for (int r = 0; r < 200; ++r) {
    const double start = now();
    parallel_for(threads, threads, [](int64_t, int) {});
    seconds.push_back(now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 100, seconds.end());
  return seconds[100];
}

}  // namespace qkv::bench
