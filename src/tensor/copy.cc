// SPDX-License-Identifier: Apache-2.0
// Copies between strided views. Axes are first put in the order of the target's memory and fused where both sides step
// through them as one, so that a contiguous pair becomes a single run and a token-major tensor a loop over long runs.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "qkv/support/error.h"
#include "qkv/tensor/view.h"
#include "tensor/round.h"

namespace qkv {
namespace {

struct Axis {
  int64_t size = 1;
  int64_t source = 0;  ///< strides, in elements
  int64_t target = 0;
};

/// The loops of a copy, outermost first, always all of them: those not needed have size 1. The last is the run.
using LoopNest = std::array<Axis, Dims::kMaxRank>;

LoopNest make_nest(const Dims& shape, const Dims& source, const Dims& target) {
  LoopNest axes;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1) axes[static_cast<size_t>(axis)] = {shape[axis], source[axis], target[axis]};
  }
  // Axes of size 1 have stride 0 here and go to the front.
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    if ((a.size == 1) != (b.size == 1)) return a.size == 1;
    return std::pair(std::abs(a.target), std::abs(a.source)) > std::pair(std::abs(b.target), std::abs(b.source));
  });
  // From the innermost outwards: an axis that continues the one inside it joins it, another starts its own loop.
  LoopNest nest;
  size_t filled = nest.size() - 1;
  nest[filled] = axes[filled];
  for (size_t i = axes.size() - 1; i-- > 0 && axes[i].size != 1;) {
    Axis& inner = nest[filled];
    if (axes[i].source == inner.source * inner.size && axes[i].target == inner.target * inner.size) {
      inner.size *= axes[i].size;
    } else {
      nest[--filled] = axes[i];
    }
  }
  if (nest.back().size == 1) nest.back() = {1, 1, 1};
  return nest;
}

/// Calls run(source offset, target offset) at the start of every run.
template <class Run>
void for_each_run(const LoopNest& nest, const Run& run) {
  static_assert(Dims::kMaxRank == 5);
  std::array<int64_t, 4> i{};
  for (i[0] = 0; i[0] < nest[0].size; ++i[0]) {
    for (i[1] = 0; i[1] < nest[1].size; ++i[1]) {
      for (i[2] = 0; i[2] < nest[2].size; ++i[2]) {
        for (i[3] = 0; i[3] < nest[3].size; ++i[3]) {
          int64_t source = 0, target = 0;
          for (size_t axis = 0; axis < i.size(); ++axis) {
            source += i[axis] * nest[axis].source;
            target += i[axis] * nest[axis].target;
          }
          run(source, target);
        }
      }
    }
  }
}

template <class T>
T narrow(double value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return round_to_bfloat16(value);
  else if constexpr (std::is_same_v<T, Float16>)
    return round_to_float16(value);
  else
    return static_cast<T>(value);
}

inline double widened(double value) { return value; }
inline double widened(float value) { return static_cast<double>(value); }
inline double widened(BFloat16 value) { return static_cast<double>(to_float(value)); }
inline double widened(Float16 value) { return static_cast<double>(widen(value)); }

template <class From, class To>
To convert(From value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, BFloat16>)
    return round_to_bfloat16(value);
  else
    return narrow<To>(widened(value));
}

template <class From, class To>
void copy_elements(const TensorView& source, const MutableTensorView& target, const LoopNest& nest) {
  const From* from = static_cast<const From*>(source.data());
  To* to = static_cast<To*>(target.data());
  const Axis run = nest.back();
  for_each_run(nest, [&](int64_t source_offset, int64_t target_offset) {
    const From* in = from + source_offset;
    To* out = to + target_offset;
    if (run.source == 1 && run.target == 1) {
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(out, in, static_cast<size_t>(run.size) * sizeof(To));
      } else {
        for (int64_t i = 0; i < run.size; ++i) out[i] = convert<From, To>(in[i]);
      }
      return;
    }
    for (int64_t i = 0; i < run.size; ++i) out[i * run.target] = convert<From, To>(in[i * run.source]);
  });
}

template <class From>
void copy_floats(const TensorView& source, const MutableTensorView& target, const LoopNest& nest) {
  switch (target.dtype()) {
    case DType::f64: return copy_elements<From, double>(source, target, nest);
    case DType::f32: return copy_elements<From, float>(source, target, nest);
    case DType::bf16: return copy_elements<From, BFloat16>(source, target, nest);
    default: return copy_elements<From, Float16>(source, target, nest);
  }
}

}  // namespace

void copy(const TensorView& source, const MutableTensorView& target) {
  require(source.shape() == target.shape(), "copy: the source has shape ", source.shape(), ", the target ",
          target.shape());
  const bool same = source.dtype() == target.dtype();
  require(same || (is_floating(source.dtype()) && is_floating(target.dtype())), "copy: ", name(source.dtype()),
          " is not converted to ", name(target.dtype()), ", only floating types are converted");
  if (source.elements() == 0) return;
  const LoopNest nest = make_nest(source.shape(), source.strides(), target.strides());
  switch (source.dtype()) {
    case DType::f64: return copy_floats<double>(source, target, nest);
    case DType::f32: return copy_floats<float>(source, target, nest);
    case DType::bf16: return copy_floats<BFloat16>(source, target, nest);
    case DType::f16: return copy_floats<Float16>(source, target, nest);
    case DType::boolean:
    case DType::u8: return copy_elements<uint8_t, uint8_t>(source, target, nest);
    case DType::i32: return copy_elements<int32_t, int32_t>(source, target, nest);
    case DType::i64: return copy_elements<int64_t, int64_t>(source, target, nest);
  }
}

void fill_zero(const MutableTensorView& target) {
  if (!target || target.elements() == 0) return;
  const LoopNest nest = make_nest(target.shape(), target.strides(), target.strides());
  const Axis run = nest.back();
  const int64_t element = size_of(target.dtype());
  for_each_run(nest, [&](int64_t, int64_t offset) {
    if (run.target == 1) {
      std::memset(target.at(offset), 0, static_cast<size_t>(run.size * element));
      return;
    }
    for (int64_t i = 0; i < run.size; ++i) {
      std::memset(target.at(offset + i * run.target), 0, static_cast<size_t>(element));
    }
  });
}

}  // namespace qkv
