// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "qkv/tensor/view.h"

namespace qkv {

/// A tensor that owns its memory (row-major, 64-byte aligned, zero-initialised), or shares ownership of memory somebody
/// else provides, such as a mapped file.
class Tensor {
 public:
  Tensor() = default;
  /// Throws Error when the size does not fit, MemoryError when there is no memory.
  Tensor(DType dtype, const Dims& shape);
  /// The same with whatever the memory held: for results that are written whole.
  static Tensor uninitialised(DType dtype, const Dims& shape);
  /// A read-only tensor over foreign memory kept alive by `owner`.
  Tensor(TensorView view, std::shared_ptr<const void> owner);

  explicit operator bool() const { return static_cast<bool>(view_); }
  const TensorView& view() const { return view_; }
  /// Writable view; throws Error for a tensor over foreign memory.
  MutableTensorView mutable_view();
  DType dtype() const { return view_.dtype(); }
  const Dims& shape() const { return view_.shape(); }

 private:
  void allocate(DType dtype, const Dims& shape, bool zeroed);
  std::shared_ptr<const void> owner_;
  void* owned_ = nullptr;
  TensorView view_;
};

/// A row-major copy in another dtype (one rounding).
Tensor converted(const TensorView& source, DType dtype);

}  // namespace qkv
