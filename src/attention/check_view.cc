// SPDX-License-Identifier: Apache-2.0
#include "attention/check_view.h"

#include <algorithm>
#include <cstdlib>

#include "qkv/support/error.h"

namespace qkv {
namespace {

/// Largest distance in bytes between two elements, or -1 when it leaves 62 bits.
int64_t byte_extent(const TensorView& view) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  int64_t extent = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) == 0) return 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(view.size(axis) - 1, view.stride(axis), &reach)) return -1;
    if (reach >= kLimit || reach <= -kLimit) return -1;
    extent += std::abs(reach);
    if (extent >= kLimit) return -1;
  }
  return extent <= kLimit / size_of(view.dtype()) ? extent * size_of(view.dtype()) : -1;
}

std::string broadcast_shape(int rank, const std::array<int64_t, 4>& full, const std::array<bool, 4>& broadcast) {
  std::string text = "[";
  for (size_t axis = static_cast<size_t>(4 - rank); axis < 4; ++axis) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(full[axis]);
    if (broadcast[axis] && full[axis] != 1) text += " or 1";
  }
  return text + "]";
}

}  // namespace

int64_t checked_product(std::initializer_list<int64_t> sizes, const char* what) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  int64_t product = 1;
  int64_t bytes = 0;
  for (const int64_t size : sizes) {
    const bool overflow = __builtin_mul_overflow(product, size, &product) || __builtin_mul_overflow(product, 8, &bytes);
    require(!overflow, "attention: ", what, " does not fit 64 bits");
  }
  return product;
}

void check_memory(const TensorView& view, const char* name) {
  require(static_cast<bool>(view), "attention: ", name, " is needed, none came");
  bool empty = false;
  for (int axis = 0; axis < view.rank(); ++axis) {
    require(view.size(axis) >= 0, "attention: ", name, " has a negative size, ", view.shape());
    require(view.size(axis) <= kLargestPosition, "attention: ", name, " has a size beyond 2^60, ", view.shape());
    empty = empty || view.size(axis) == 0;
  }
  int64_t bytes = empty ? 0 : size_of(view.dtype());
  for (int axis = 0; axis < view.rank(); ++axis) {
    require(!__builtin_mul_overflow(bytes, view.size(axis), &bytes), "attention: ", name, " of shape ", view.shape(),
            " does not fit 64 bits");
  }
  require(empty || byte_extent(view) >= 0, "attention: ", name, " has strides that leave 64 bits, ", view.strides());
  require(empty || view.data() != nullptr, "attention: ", name, " of shape ", view.shape(), " has a null data pointer");
  require(reinterpret_cast<uintptr_t>(view.data()) % static_cast<uintptr_t>(size_of(view.dtype())) == 0 || empty,
          "attention: ", name, " must be aligned to its ", size_of(view.dtype()), "-byte elements");
}

void check_shape(const TensorView& view, const char* name, const Dims& shape) {
  require(static_cast<bool>(view), "attention: ", name, " of shape ", shape, " is needed, none came");
  require(view.shape() == shape, "attention: ", name, " must be ", shape, ", got ", view.shape());
  check_memory(view, name);
}

void check_axes(const TensorView& view, const char* name, int rank, const std::array<int64_t, 4>& full,
                const std::array<bool, 4>& broadcast) {
  if (rank == 4) {
    require(view.rank() == 4, "attention: ", name, " must have 4 axes as q, got ", view.shape());
  } else {
    require(view.rank() == rank || view.rank() == 4, "attention: ", name, " must have ", rank, " axes as q, or 4, got ",
            view.shape());
  }
  for (int axis = 0; axis < view.rank(); ++axis) {
    const size_t position = static_cast<size_t>(4 - view.rank() + axis);
    const bool fits = view.size(axis) == full[position] || (broadcast[position] && view.size(axis) == 1);
    require(fits, "attention: ", name, " must be ", broadcast_shape(view.rank(), full, broadcast), ", got ",
            view.shape());
  }
  check_memory(view, name);
}

void check_dtype(const TensorView& view, const char* name, DType expected) {
  require_dtype(view.dtype() == expected, "attention: ", name, " must be ", qkv::name(expected), ", got ",
                qkv::name(view.dtype()));
}

void check_dtype(const TensorView& view, const char* name, DType expected, DType other) {
  require_dtype(view.dtype() == expected || view.dtype() == other, "attention: ", name, " must be ",
                qkv::name(expected), expected == other ? "" : concat(" or ", qkv::name(other)), ", got ",
                qkv::name(view.dtype()));
}

Operand make_operand(const TensorView& view, const std::array<int, 4>& axes) {
  // Empty views may come with a null pointer, which an operand reads as "absent".
  alignas(8) static const char empty[8] = {};
  Operand operand;
  operand.data = view.data() != nullptr ? static_cast<const char*>(view.data()) : empty;
  operand.dtype = view.dtype();
  operand.element_size = size_of(view.dtype());
  for (size_t a = 0; a < 4; ++a) {
    const int axis = axes[a];
    operand.stride[a] = axis < 0 || view.size(axis) == 1 ? 0 : view.stride(axis);
  }
  return operand;
}

Operand make_operand(const TensorView& view) {
  std::array<int, 4> axes{};
  for (int a = 0; a < 4; ++a) axes[static_cast<size_t>(a)] = std::max(a - (4 - view.rank()), -1);
  return make_operand(view, axes);
}

int64_t integer_at(const TensorView& view, int64_t i) {
  const void* element = view.at(i * view.stride(0));
  return view.dtype() == DType::i64 ? *static_cast<const int64_t*>(element) : *static_cast<const int32_t*>(element);
}

}  // namespace qkv
