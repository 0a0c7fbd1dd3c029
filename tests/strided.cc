// SPDX-License-Identifier: Apache-2.0
#include "strided.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace qkv::test {
namespace {

constexpr int64_t kMargin = 9;  // elements before and after, odd so that the first element is off any alignment

/// Strides when axes are laid out in the given order, innermost last, `step` elements apart and `gap` after each row.
Dims strides_in_order(const Dims& shape, const std::vector<int>& order, int64_t step, int64_t gap) {
  Dims strides = Dims::filled(shape.rank(), 0);
  int64_t stride = step;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    strides[*axis] = stride;
    stride *= std::max<int64_t>(shape[*axis], 1);
    if (axis == order.rbegin()) stride += gap;
  }
  return strides;
}

Dims layout_strides(const Dims& shape, Layout layout) {
  std::vector<int> order(static_cast<size_t>(shape.rank()));
  std::iota(order.begin(), order.end(), 0);
  const size_t rank = order.size();
  if (layout == Layout::token_major && rank >= 3) std::swap(order[rank - 3], order[rank - 2]);
  if (layout == Layout::transposed && rank >= 2) std::swap(order[rank - 2], order[rank - 1]);
  Dims strides = strides_in_order(shape, order, layout == Layout::strided ? 3 : 1, layout == Layout::padded ? 5 : 0);
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (layout == Layout::reversed) strides[axis] = -strides[axis];
  }
  if (layout == Layout::expanded && rank >= 1 && shape[0] > 1) strides[0] = 0;
  return strides;
}

int64_t offset_of(const Dims& shape, const Dims& strides, int64_t index) {
  int64_t offset = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    offset += index % shape[axis] * strides[axis];
    index /= shape[axis];
  }
  return offset;
}

}  // namespace

const char* name(Layout layout) {
  switch (layout) {
    case Layout::contiguous: return "contiguous";
    case Layout::token_major: return "token_major";
    case Layout::reversed: return "reversed";
    case Layout::padded: return "padded";
    case Layout::strided: return "strided";
    case Layout::transposed: return "transposed";
    case Layout::expanded: return "expanded";
  }
  return "unknown";
}

StridedTensor::StridedTensor(DType dtype, const Dims& shape, Layout layout) {
  const Dims strides = layout_strides(shape, layout);
  int64_t lowest = 0;
  int64_t highest = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t reach = std::max<int64_t>(shape[axis] - 1, 0) * strides[axis];
    lowest += std::min<int64_t>(reach, 0);
    highest += std::max<int64_t>(reach, 0);
  }
  const int64_t bytes = (highest - lowest + 1 + 2 * kMargin) * size_of(dtype);
  memory_.assign(static_cast<size_t>(bytes + 7) / 8, ~uint64_t{0});
  char* first = reinterpret_cast<char*>(memory_.data()) + (kMargin - lowest) * size_of(dtype);
  view_ = MutableTensorView(dtype, first, shape, strides);
}

int64_t StridedTensor::element_offset(int64_t index) const { return offset_of(view_.shape(), view_.strides(), index); }

bool StridedTensor::padding_intact() const {
  const char* begin = reinterpret_cast<const char*>(memory_.data());
  std::vector<bool> owned(memory_.size() * 8, false);
  for_each_element([&](int64_t, void* element) {
    const int64_t at = static_cast<const char*>(element) - begin;
    for (int64_t byte = 0; byte < size_of(view_.dtype()); ++byte) owned[static_cast<size_t>(at + byte)] = true;
  });
  for (size_t byte = 0; byte < owned.size(); ++byte) {
    if (!owned[byte] && static_cast<unsigned char>(begin[byte]) != 0xFF) return false;
  }
  return true;
}

const void* element_address(const TensorView& view, int64_t index) {
  return view.at(offset_of(view.shape(), view.strides(), index));
}

double element(const TensorView& view, int64_t index) {
  return load_as_double(view.dtype(), element_address(view, index));
}

std::vector<double> elements(const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(view, static_cast<int64_t>(i));
  return values;
}

}  // namespace qkv::test
