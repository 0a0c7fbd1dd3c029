// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv::test {

/// How the elements of a tensor lie in memory. Every byte that is no element is 0xFF: NaN for the floating dtypes.
enum class Layout : uint8_t {
  contiguous,   ///< row-major
  token_major,  ///< the last axis but one outermost but the batch: [B, T, H, D]
  reversed,     ///< every stride negative
  padded,       ///< rows with a gap after them, starting one element off any alignment
  strided,      ///< the last axis with stride 3
  transposed,   ///< the last two axes exchanged: the last one is not the innermost
  expanded,     ///< axis 0 has stride 0 where its size is above 1: all batch entries are the same. Inputs only
};
const char* name(Layout layout);

/// A tensor of its own with a layout. Elements begin as 0xFF too, so what nobody writes is found.
class StridedTensor {
 public:
  StridedTensor() = default;
  StridedTensor(DType dtype, const Dims& shape, Layout layout);
  explicit operator bool() const { return static_cast<bool>(view_); }
  const MutableTensorView& view() const { return view_; }
  /// Calls fill(index in row-major order) for every element and stores the result, rounded to the dtype.
  template <class F>
  void fill(F value) {
    for_each_element([&](int64_t index, void* element) { store_from_double(view_.dtype(), element, value(index)); });
  }
  /// True when every byte that belongs to no element still is 0xFF.
  bool padding_intact() const;

 private:
  template <class F>
  void for_each_element(F body) const;
  int64_t element_offset(int64_t index) const;

  std::vector<uint64_t> memory_;  // aligned for every dtype
  MutableTensorView view_;
};

template <class F>
void StridedTensor::for_each_element(F body) const {
  const int64_t count = view_.elements();
  for (int64_t index = 0; index < count; ++index) body(index, view_.at(element_offset(index)));
}

/// Element at a row-major index of any view: its address, and its value as a double.
const void* element_address(const TensorView& view, int64_t index);
double element(const TensorView& view, int64_t index);
/// All elements, row-major.
std::vector<double> elements(const TensorView& view);

}  // namespace qkv::test
