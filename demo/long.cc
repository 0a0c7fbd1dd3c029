// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <random>
#include <string>

#include <qkv/attention.h>
#include <qkv/support/parallel.h>
#include <qkv/support/random.h>

#include "demo.h"

namespace demo {
namespace {

using qkv::Tensor;

constexpr int64_t kHeads = 2, kWidth = 64;

/// A line of /proc/self/status in bytes: "VmRSS", memory in use, or "VmHWM", the most there was. 0 where unknown.
int64_t process_memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

struct Problem {
  Tensor q, k, v, d_out;      // [1, H, T, D] f32, normal
  Tensor out, d_q, d_k, d_v;  // [1, H, T, D]
};

Problem random_problem(int64_t keys) {
  const qkv::Dims shape = {1, kHeads, keys, kWidth};
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  Problem p;
  for (Tensor* tensor : {&p.q, &p.k, &p.v, &p.d_out}) {
    *tensor = Tensor(qkv::DType::f32, shape);
    std::generate_n(floats(*tensor), element_count(shape), [&] { return normal(generator); });
  }
  for (Tensor* tensor : {&p.out, &p.d_q, &p.d_k, &p.d_v}) {
    *tensor = Tensor(qkv::DType::f32, shape);
    fill_zero(tensor->mutable_view());  // so that these pages are in memory before the measurement begins
  }
  return p;
}

struct Run {
  double forward_seconds = 0, backward_seconds = 0;
  int64_t forward_peak = 0, backward_peak = 0;  ///< most memory the process ever had, in bytes
  uint64_t bits = 0;                            ///< a hash of out, d_q, d_k, d_v
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

uint64_t hash_of(std::initializer_list<const Tensor*> tensors) {
  uint64_t hash = 0;
  for (const Tensor* tensor : tensors) {
    for (int64_t i = 0; i < tensor->view().elements(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, floats(*tensor) + i, sizeof bits);
      hash = qkv::mix64(hash ^ bits);
    }
  }
  return hash;
}

Run run(Problem& p, int threads) {
  const qkv::TensorView q = p.q.view(), k = p.k.view(), v = p.v.view();
  const qkv::AttentionOptions options{.threads = threads};
  Run run;
  auto start = std::chrono::steady_clock::now();
  const qkv::AttentionState state = attention_forward(q, k, v, options, p.out.mutable_view());
  run.forward_seconds = seconds_since(start);
  run.forward_peak = process_memory("VmHWM");

  start = std::chrono::steady_clock::now();
  attention_backward(q, k, v, options, state, p.d_out.view(),
                     {.q = p.d_q.mutable_view(), .k = p.d_k.mutable_view(), .v = p.d_v.mutable_view()});
  run.backward_seconds = seconds_since(start);
  run.backward_peak = process_memory("VmHWM");
  run.bits = hash_of({&p.out, &p.d_q, &p.d_k, &p.d_v});
  return run;
}

/// Eight rows of every head against the f64 reference: what docs/numerics.md allows is twice the error of the plain
/// formula in f32, and a few units in the last place.
bool check_rows(const Problem& p) {
  const int64_t T = p.q.shape()[2], rows = std::min<int64_t>(8, T), step = T / rows;
  const auto some_rows = [&](const Tensor& tensor) {  // every step-th row: a view with other strides, no copy
    return qkv::TensorView(floats(tensor), {1, kHeads, rows, kWidth}, {0, T * kWidth, step * kWidth, 1});
  };
  const auto evaluate = [&](qkv::Arithmetic arithmetic) {
    return converted(attention_reference(some_rows(p.q), p.k.view(), p.v.view(), {}, arithmetic).out.view(),
                     qkv::DType::f64);
  };
  const auto largest_error = [](const Tensor& result, const Tensor& reference) {
    const auto* a = static_cast<const double*>(result.view().data());
    const auto* b = static_cast<const double*>(reference.view().data());
    double largest = 0;
    for (int64_t i = 0; i < result.view().elements(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    return largest;
  };
  const Tensor reference = evaluate(qkv::Arithmetic::reference);
  const double error = largest_error(converted(some_rows(p.out), qkv::DType::f64), reference);
  const double plain_error = largest_error(evaluate(qkv::Arithmetic::plain), reference);
  const double largest = largest_error(reference, Tensor(qkv::DType::f64, reference.shape()));  // from zero
  const bool agrees = error <= 2 * plain_error + 4 * 0x1p-23 * largest;
  std::printf("   %d rows of each head against the f64 reference: error %.1e, the plain formula's in f32 %.1e%s\n",
              static_cast<int>(rows), error, plain_error, agrees ? "" : "  TOO LARGE");
  return agrees;
}

void print_line(const char* name, double seconds, double operations, int64_t memory, double plain_memory) {
  char used[32];
  std::snprintf(used, sizeof used, memory < 0 ? "not measured" : "%.1f MiB", static_cast<double>(memory) / 0x1p20);
  std::printf("   %-10s %8.2f s %10.0f GFLOP/s %16s %18.0f MiB\n", name, seconds, operations / seconds * 1e-9, used,
              plain_memory / 0x1p20);
}

void print_bits(int threads, const Run& run, const char* verdict) {
  std::printf("   %-10d %10.2f s %10.2f s    %016llx%s\n", threads, run.forward_seconds, run.backward_seconds,
              static_cast<unsigned long long>(run.bits), verdict);
}

}  // namespace

bool show_long(int64_t keys) {
  Problem p = random_problem(keys);
  const int64_t before = process_memory("VmRSS");
  const auto extra = [&](int64_t peak) { return peak == 0 ? -1 : std::max<int64_t>(0, peak - before); };
  const double pairs = static_cast<double>(keys) * static_cast<double>(keys) * kHeads;
  const int threads = std::max(2, qkv::available_threads());

  const Run many = run(p, threads);
  std::printf("   %-10s %10s %18s %16s %22s\n", "", "time", "speed", "extra memory", "the plain formula's");
  print_line("forward", many.forward_seconds, 4 * kWidth * pairs, extra(many.forward_peak), 4 * pairs);
  print_line("backward", many.backward_seconds, 10 * kWidth * pairs, extra(many.backward_peak), 8 * pairs);
  std::printf(
      "   Speed counts the 2 and 5 matrix products there are. Extra memory is the peak beyond inputs\n"
      "   and results (%.0f MiB). The plain formula holds all weights; its backward, their gradients as well.\n",
      static_cast<double>(8 * p.q.view().elements() * 4) / 0x1p20);
  bool good = check_rows(p);
  std::fflush(stdout);

  const Run one = run(p, 1);
  const bool same = one.bits == many.bits;
  good &= same;
  std::printf("\n   %-10s %12s %12s    %s\n", "threads", "forward", "backward", "hash of out, d_q, d_k, d_v");
  print_bits(threads, many, "");
  print_bits(1, one, same ? "   the same bits" : "   NOT the same bits");
  return good;
}

}  // namespace demo
