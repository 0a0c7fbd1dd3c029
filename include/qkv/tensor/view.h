// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <type_traits>

#include "qkv/tensor/dtype.h"

namespace qkv {

/// Up to kMaxRank sizes or strides, outermost first.
class Dims {
 public:
  static constexpr int kMaxRank = 5;
  Dims() = default;
  Dims(std::initializer_list<int64_t> values);
  static Dims filled(int rank, int64_t value);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return values_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return values_[static_cast<size_t>(axis)]; }
  void push_back(int64_t value);
  bool operator==(const Dims& other) const;
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> values_{};
};

/// "[2, 3, 4]"
std::string to_string(const Dims& dims);
/// The same, for messages that are put together only when they are needed.
std::ostream& operator<<(std::ostream& out, const Dims& dims);
/// Product of the sizes; throws Error when it does not fit 64 bits or a size is negative.
int64_t element_count(const Dims& shape);
/// Row-major strides, in elements.
Dims contiguous_strides(const Dims& shape);

/// A tensor somebody else owns, read-only: dtype, shape, strides in elements (zero, negative, any order), pointer to
/// element 0. A default-constructed view is absent: `if (view)` is false.
class TensorView {
 public:
  TensorView() = default;
  TensorView(DType dtype, const void* data, const Dims& shape, const Dims& strides);
  TensorView(DType dtype, const void* data, const Dims& shape)
      : TensorView(dtype, data, shape, contiguous_strides(shape)) {}
  template <class T>
  TensorView(const T* data, const Dims& shape) : TensorView(DTypeOf<T>::value, data, shape) {}
  template <class T>
  TensorView(const T* data, const Dims& shape, const Dims& strides)
      : TensorView(DTypeOf<T>::value, data, shape, strides) {}

  explicit operator bool() const { return present_; }
  DType dtype() const { return dtype_; }
  int rank() const { return shape_.rank(); }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t stride(int axis) const { return strides_[axis]; }
  int64_t elements() const { return element_count(shape_); }
  const void* data() const { return data_; }
  /// Address of the element `offset` elements away from element 0.
  const void* at(int64_t offset) const { return static_cast<const char*>(data_) + offset * size_of(dtype_); }
  bool is_contiguous() const;

 protected:
  bool present_ = false;
  DType dtype_ = DType::f32;
  Dims shape_;
  Dims strides_;
  const void* data_ = nullptr;
};

/// A view that may be written through.
class MutableTensorView : public TensorView {
 public:
  MutableTensorView() = default;
  MutableTensorView(DType dtype, void* data, const Dims& shape, const Dims& strides)
      : TensorView(dtype, data, shape, strides) {}
  MutableTensorView(DType dtype, void* data, const Dims& shape) : TensorView(dtype, data, shape) {}
  template <class T>
  requires(!std::is_const_v<T>) MutableTensorView(T* data, const Dims& shape)
      : TensorView(DTypeOf<T>::value, data, shape) {}
  template <class T>
  requires(!std::is_const_v<T>) MutableTensorView(T* data, const Dims& shape, const Dims& strides)
      : TensorView(DTypeOf<T>::value, data, shape, strides) {}
  void* data() const { return const_cast<void*>(data_); }
  void* at(int64_t offset) const { return const_cast<void*>(TensorView::at(offset)); }
};

/// True when some byte belongs to an element of both views (exact for strided interleaving, such as the three parts of
/// one fused buffer).
bool overlap(const TensorView& a, const TensorView& b);
/// True when two different indices of the view name the same element.
bool overlaps_itself(const TensorView& view);

/// Copies `source` into `target` of the same shape, converting between floating dtypes by one rounding.
void copy(const TensorView& source, const MutableTensorView& target);
/// Sets every element to zero.
void fill_zero(const MutableTensorView& target);

}  // namespace qkv
