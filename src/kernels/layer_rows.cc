// SPDX-License-Identifier: Apache-2.0
#include "kernels/layer_rows.h"

#include "kernels/matmul_check.h"
#include "qkv/support/error.h"

namespace qkv {

LayerCheck::LayerCheck(const char* operation, const char* name, const TensorView& first)
    : operation_(operation), first_name_(name), first_(first) {
  check_floating(first, operation, name);
  require(first.rank() >= 1 && first.rank() <= 3, operation, ": ", name, " should have 1 to 3 axes, got ",
          first.shape());
}

void LayerCheck::operand(const char* name, const TensorView& view, const Dims& shape) const {
  check_floating(view, operation_, name);
  require(view.shape() == shape, operation_, ": ", name, " should be ", shape, ", got ", view.shape());
  require((view.dtype() == DType::f64) == (first_.dtype() == DType::f64), operation_, ": ", name, " is ",
          qkv::name(view.dtype()), ", ", first_name_, " is ", qkv::name(first_.dtype()), ": f64 goes with f64 only");
}

void LayerCheck::like_first(const char* name, const TensorView& view, bool needed) const {
  if (view || needed) operand(name, view, first_.shape());
}

void LayerCheck::vector(const char* name, const TensorView& view, int64_t size) const {
  if (view) operand(name, view, {size});
}

void LayerCheck::threads(int threads) const {
  require(threads >= 0, operation_, ": threads should be 0 or more, got ", threads);
}

void LayerCheck::output(const char* name, const MutableTensorView& view,
                        std::initializer_list<TensorView> inputs) const {
  if (!view) return;
  require(!overlaps_itself(view), operation_, ": ", name, " overlaps itself, strides ", view.strides());
  for (const TensorView& input : inputs) {
    require(!input || is_same_view(view, input) || !overlap(view, input), operation_, ": ", name,
            " overlaps an input without being it");
  }
}

void LayerCheck::apart(const char* name, const TensorView& output, const char* other_name,
                       const TensorView& other) const {
  require(!output || !other || !overlap(output, other), operation_, ": ", name, " overlaps ", other_name);
}

int64_t rows_of(const TensorView& view) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < view.rank(); ++axis) rows *= view.size(axis);
  return rows;
}

StoredRows rows_part(const TensorView& view, int64_t first, int64_t count) {
  if (!view) return {nullptr, DType::f32, 0, 0, 0, 0};
  const int last = view.rank() - 1;
  const int64_t row_stride = last == 0 ? 0 : view.stride(last - 1);
  int64_t offset = first * row_stride;
  if (last == 2) offset = first / view.size(1) * view.stride(0) + first % view.size(1) * row_stride;
  return {view.at(offset), view.dtype(), row_stride, view.stride(last), count, view.size(last)};
}

}  // namespace qkv
