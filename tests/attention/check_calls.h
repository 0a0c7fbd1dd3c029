// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "qkv/attention/options.h"
#include "qkv/support/error.h"

namespace qkv {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr int64_t kFar = int64_t{1} << 60;

/// A call that is right: B = 2, H = 4, Hkv = 2, Tq = 3, Tk = 5, D = 8, Dv = 6, f32. Each case spoils it.
struct Call {
  TensorView q = view(DType::f32, {2, 4, 3, 8});
  TensorView k = view(DType::f32, {2, 2, 5, 8});
  TensorView v = view(DType::f32, {2, 2, 5, 6});
  AttentionOptions options = {};

  /// A view of zeros of any shape that fits.
  static TensorView view(DType dtype, const Dims& shape) {
    alignas(64) static const char zeros[1 << 16] = {};
    return {dtype, zeros, shape};
  }
  TensorView integers(std::initializer_list<int64_t> values) {
    memory.emplace_back(values);
    return {memory.back().data(), {static_cast<int64_t>(values.size())}};
  }
  void pack(std::initializer_list<int64_t> query_starts, std::initializer_list<int64_t> key_starts) {
    q = view(DType::f32, {3, 4, 8});
    k = view(DType::f32, {5, 2, 8});
    v = view(DType::f32, {5, 2, 6});
    options.query_starts = integers(query_starts);
    options.key_starts = integers(key_starts);
  }
  std::deque<std::vector<int64_t>> memory;
};

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace qkv
