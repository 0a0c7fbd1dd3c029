// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/tensor.h"

#include <cstdlib>
#include <utility>

#include "qkv/support/checked.h"
#include "qkv/support/error.h"
#include "support/huge_pages.h"

namespace qkv {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector

}  // namespace

Tensor::Tensor(DType dtype, const Dims& shape) { allocate(dtype, shape, true); }

Tensor Tensor::uninitialised(DType dtype, const Dims& shape) {
  Tensor tensor;
  tensor.allocate(dtype, shape, false);
  return tensor;
}

void Tensor::allocate(DType dtype, const Dims& shape, bool zeroed) {
  const int64_t bytes = checked_multiply(element_count(shape), size_of(dtype), "bytes of a tensor");
  const int64_t padded = checked_add(bytes, kAlignment, "bytes of a tensor");
  // calloc, not aligned_alloc and a loop: fresh pages from the system are zero already and stay untouched until used.
  const auto size = static_cast<size_t>(padded);
  void* memory = zeroed ? std::calloc(size, 1) : std::malloc(size);
  if (memory == nullptr) {
    throw MemoryError(concat("no memory for a tensor of shape ", shape, " (", bytes, " bytes)"));
  }
  prefer_huge_pages(memory, padded);
  owner_ = std::shared_ptr<const void>(memory, [](const void* p) { std::free(const_cast<void*>(p)); });
  const uintptr_t mask = static_cast<uintptr_t>(kAlignment) - 1;
  owned_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + mask) & ~mask);
  view_ = TensorView(dtype, owned_, shape);
}

Tensor::Tensor(TensorView view, std::shared_ptr<const void> owner) : owner_(std::move(owner)), view_(view) {}

MutableTensorView Tensor::mutable_view() {
  require(owned_ != nullptr,
          view_ ? "a tensor over memory of somebody else is read-only" : "an absent tensor has no view");
  return MutableTensorView(view_.dtype(), owned_, view_.shape());
}

Tensor converted(const TensorView& source, DType dtype) {
  require(static_cast<bool>(source), "an absent tensor cannot be converted to ", name(dtype));
  Tensor result(dtype, source.shape());
  copy(source, result.mutable_view());
  return result;
}

}  // namespace qkv
