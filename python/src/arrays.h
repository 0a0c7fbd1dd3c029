// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <list>
#include <vector>

#include "qkv/tensor/tensor.h"
#include "qkv/tensor/view.h"

namespace qkv::python {

namespace nb = nanobind;

/// Views of Python arrays, without copies, valid while this object lives: anything with the buffer protocol (read-only
/// included), any CPU array with __dlpack__, and NumPy arrays of the bfloat16 of ml_dtypes.
class Inputs {
 public:
  Inputs() = default;
  ~Inputs();
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  /// Throws TypeError naming the array when it is none or its dtype or device is not one of ours, ValueError when its
  /// shape or strides are not.
  TensorView view(nb::handle array, const char* name);
  /// None is an absent view.
  TensorView optional_view(nb::handle array, const char* name) {
    return array.is_none() ? TensorView() : view(array, name);
  }
  /// A view to write results through; refuses read-only memory.
  MutableTensorView mutable_view(nb::handle array, const char* name);
  /// The same as view(), where a list or tuple of numbers will do: it becomes an array of `dtype`, a name of NumPy's.
  TensorView numbers(nb::handle array, const char* name, const char* dtype);

 private:
  bool add_buffer(nb::handle array);
  TensorView buffer_view(const char* name, bool is_bfloat16) const;
  TensorView dlpack_view(nb::handle array, const char* name);

  std::list<Py_buffer> buffers_;
  std::vector<nb::ndarray<nb::ro>> tensors_;
  std::vector<nb::object> kept_;
};

/// Learns the types of the module torch, whose tensors are then viewed directly: it costs a tenth of what DLPack does.
void learn_torch(nb::handle torch);

/// A new NumPy array, to be written through `view` and then returned.
struct Output {
  nb::object array;
  MutableTensorView view;

  Output() : array(nb::none()) {}
  Output(DType dtype, const Dims& shape);
};

/// A new NumPy array with what a tensor holds.
nb::object copied(const Tensor& tensor);

}  // namespace qkv::python
