// SPDX-License-Identifier: Apache-2.0
//
// Promise 1: at 16,384 queries and keys, forward, backward, forward mode and second order with each option need at most
// 64 MiB beside inputs and outputs. One array of Tq x Tk floats would be 1 GiB.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>

#include "operation.h"
#include "qkv/attention/derivatives.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

constexpr int64_t kT = 16'384;
constexpr int64_t kMiB = int64_t{1} << 20;

/// A line of /proc/self/status in bytes; 0 where there is none.
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

/// Growth of the peak resident size while `body` runs.
int64_t peak_growth(const std::function<void()>& body) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from here
  const int64_t before = status_bytes("VmHWM");
  body();
  return status_bytes("VmHWM") - before;
}

Tensor filled(DType dtype, const Dims& shape, const std::function<double(int64_t)>& value) {
  Tensor tensor(dtype, shape);
  const MutableTensorView view = tensor.mutable_view();
  for (int64_t n = 0; n < view.elements(); ++n) store_from_double(dtype, view.at(n), value(n));
  return tensor;
}

/// Inputs of one option at full length; gradients are written into touched memory, so that they are not counted.
class LongProblem {
 public:
  LongProblem(int64_t heads, int64_t width, DType dtype)
      : heads_(heads), dtype_(dtype), stream_(1), shape_{1, heads, kT, width} {
    for (Tensor* tensor : {&q_, &k_, &v_, &d_out_}) *tensor = random(dtype, shape_);
    for (Tensor* tensor : {&out_, &d_q_, &d_k_, &d_v_}) *tensor = zeros(dtype, shape_);
    rows_ = random(DType::f32, {1, heads, kT, 1});
    columns_ = random(DType::f32, {1, heads, 1, kT});
    d_rows_ = zeros(DType::f32, rows_.shape());
    d_columns_ = zeros(DType::f32, columns_.shape());
    per_head_ = random(DType::f32, {heads});
    d_per_head_ = zeros(DType::f32, {heads});
    table_ = random(DType::f32, {heads, 32});
    d_table_ = zeros(DType::f32, {heads, 32});
    shown_ = filled(DType::u8, {1, 1, 1, kT}, [](int64_t j) { return j % 7 != 0 ? 1 : 0; });
    blocks_ = filled(DType::u8, {1, 1, kT / 64, kT / 64}, [](int64_t n) { return n % 3 != 0 ? 1 : 0; });
    segments_ = filled(DType::i32, {1, kT}, [](int64_t i) { return static_cast<double>(i / 5000); });
    length_ = filled(DType::i64, {1}, [](int64_t) { return static_cast<double>(kT - 100); });
  }

  int64_t growth(const std::string& option) {
    AttentionOptions options{.seed = 3};
    AttentionGradients gradients{.q = d_q_.mutable_view(), .k = d_k_.mutable_view(), .v = d_v_.mutable_view()};
    set(option, options, gradients);
    return peak_growth([&] {
      const AttentionState state = attention_forward(q_.view(), k_.view(), v_.view(), options, out_.mutable_view());
      attention_backward(q_.view(), k_.view(), v_.view(), options, state, d_out_.view(), gradients);
    });
  }

  /// Of forward mode and second order, along directions that are the inputs themselves.
  int64_t growth_of_derivatives(const std::string& option) {
    AttentionOptions options{.seed = 3};
    AttentionGradients first{.q = d_q_.mutable_view(), .k = d_k_.mutable_view(), .v = d_v_.mutable_view()};
    set(option, options, first);
    AttentionTangents tangents{.q = k_.view(), .k = v_.view(), .v = q_.view(), .bias = options.bias};
    tangents.slopes = options.slopes;
    tangents.table = options.table;
    tangents.sinks = options.sinks;
    const AttentionState state = attention_forward(q_.view(), k_.view(), v_.view(), options, out_.mutable_view());
    return peak_growth([&] {
      attention_jvp(q_.view(), k_.view(), v_.view(), options, state, tangents, d_q_.mutable_view(), {});
      attention_second_order(q_.view(), k_.view(), v_.view(), options, state, d_out_.view(),
                             {.q = tangents.q, .k = tangents.k, .v = tangents.v, .bias = options.bias},
                             {.q = first.q, .k = first.k, .v = first.v, .bias = first.bias});
    });
  }

  static std::vector<std::string> options() {
    return {"none",  "softcap", "bias_rows", "bias_columns", "slopes",   "table",   "causal", "window",
            "sinks", "lengths", "mask",      "block_mask",   "segments", "dropout", "scale"};
  }

 private:
  Tensor random(DType dtype, const Dims& shape) {
    return filled(dtype, shape, [this](int64_t) { return stream_.normal(); });
  }
  static Tensor zeros(DType dtype, const Dims& shape) {
    return filled(dtype, shape, [](int64_t) { return 0; });
  }

  void set(const std::string& option, AttentionOptions& options, AttentionGradients& gradients) {
    if (option == "softcap") options.softcap = 20;
    if (option == "bias_rows") options.bias = rows_.view(), gradients.bias = d_rows_.mutable_view();
    if (option == "bias_columns") options.bias = columns_.view(), gradients.bias = d_columns_.mutable_view();
    if (option == "slopes") options.slopes = per_head_.view(), gradients.slopes = d_per_head_.mutable_view();
    if (option == "table") options.table = table_.view(), gradients.table = d_table_.mutable_view();
    if (option == "causal") options.causal = Causal::top_left();
    if (option == "window") options.window = {.left = 255, .right = 255};
    if (option == "sinks") options.sinks = per_head_.view(), gradients.sinks = d_per_head_.mutable_view();
    if (option == "lengths") options.key_lengths = options.query_lengths = length_.view();
    if (option == "mask") options.mask = shown_.view();
    if (option == "block_mask") options.block_mask = blocks_.view(), options.block = {64, 64};
    if (option == "segments") options.query_segment = options.key_segment = segments_.view();
    if (option == "dropout") options.dropout = 0.1;
    if (option == "scale") gradients.scale = MutableTensorView(&d_scale_, Dims{1});
  }

  int64_t heads_;
  DType dtype_;
  Stream stream_;
  Dims shape_;
  Tensor q_, k_, v_, d_out_, out_, d_q_, d_k_, d_v_;
  Tensor rows_, columns_, d_rows_, d_columns_, per_head_, d_per_head_, table_, d_table_;
  Tensor shown_, blocks_, segments_, length_;
  float d_scale_ = 0;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void expect_little_memory(int64_t heads, int64_t width, DType dtype) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  LongProblem problem(heads, width, dtype);
  for (const std::string& option : LongProblem::options()) {
    const int64_t growth = problem.growth(option);
    std::printf("%-13s %5.1f MiB\n", option.c_str(), static_cast<double>(growth) / static_cast<double>(kMiB));
    EXPECT_LE(growth, 64 * kMiB) << option;
  }
}

void expect_little_memory_of_derivatives(int64_t heads, int64_t width, DType dtype) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory would be measured";
  LongProblem problem(heads, width, dtype);
  for (const std::string& option : LongProblem::options()) {
    const int64_t growth = problem.growth_of_derivatives(option);
    std::printf("%-13s %5.1f MiB\n", option.c_str(), static_cast<double>(growth) / static_cast<double>(kMiB));
    EXPECT_LE(growth, 64 * kMiB) << option;
  }
}

TEST(memory, each_option_at_16384_keys) { expect_little_memory(1, 16, DType::f32); }
TEST(LongMemory, derivatives_with_each_option_at_16384_keys) { expect_little_memory_of_derivatives(1, 16, DType::f32); }
TEST(LongMemory, derivatives_with_each_option_at_16384_keys_eight_heads) {
  expect_little_memory_of_derivatives(8, 64, DType::f32);
}
TEST(LongMemory, each_option_at_16384_keys_eight_heads) { expect_little_memory(8, 64, DType::f32); }
TEST(LongMemory, each_option_at_16384_keys_eight_heads_bf16) { expect_little_memory(8, 64, DType::bf16); }

}  // namespace
}  // namespace qkv::test
