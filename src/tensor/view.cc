// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/view.h"

#include <ostream>

#include <algorithm>

#include "qkv/support/error.h"

namespace qkv {

Dims::Dims(std::initializer_list<int64_t> values) {
  for (const int64_t value : values) push_back(value);
}

Dims Dims::filled(int rank, int64_t value) {
  Dims dims;
  for (int axis = 0; axis < rank; ++axis) dims.push_back(value);
  return dims;
}

void Dims::push_back(int64_t value) {
  require(rank_ < kMaxRank, "a tensor has more than ", kMaxRank, " dimensions, the most that qkv holds");
  values_[static_cast<size_t>(rank_++)] = value;
}

bool Dims::operator==(const Dims& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int axis = 0; axis < dims.rank(); ++axis) text += (axis == 0 ? "" : ", ") + std::to_string(dims[axis]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << to_string(dims); }

int64_t element_count(const Dims& shape) {
  bool fits = true;
  bool empty = false;
  int64_t count = 1;
  for (const int64_t size : shape) {
    require(size >= 0, "a shape of ", shape, " has a negative size");
    empty = empty || size == 0;
    fits = fits && !__builtin_mul_overflow(count, size, &count);
  }
  if (empty) return 0;
  require(fits, "the number of elements of a shape of ", shape, " does not fit 64 bits");
  return count;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides = Dims::filled(shape.rank(), 0);
  int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    // An empty shape has no element to reach, so a product that does not fit is harmless there; element_count() has
    // already refused it everywhere else.
    if (__builtin_mul_overflow(step, shape[axis], &step)) step = 0;
  }
  return strides;
}

TensorView::TensorView(DType dtype, const void* data, const Dims& shape, const Dims& strides)
    : present_(true), dtype_(dtype), shape_(shape), strides_(strides), data_(data) {
  require(shape.rank() == strides.rank(), "a view of shape ", shape, " has strides ", strides,
          ": one stride per axis is expected");
  element_count(shape);
}

bool TensorView::is_contiguous() const {
  if (element_count(shape_) == 0) return true;
  const Dims expected = contiguous_strides(shape_);
  for (int axis = 0; axis < rank(); ++axis) {
    if (shape_[axis] != 1 && strides_[axis] != expected[axis]) return false;
  }
  return true;
}

}  // namespace qkv
