// SPDX-License-Identifier: Apache-2.0
#include "attention/allowance.h"

#include <algorithm>
#include <cmath>

namespace qkv {
namespace {

/// "A few units in the last place".
constexpr double kUlps = 4;

/// Smallest distance between numbers of a storage type: what lies below it is rounded to it or to 0.
double smallest(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1074;
    case DType::bf16: return 0x1p-133;
    case DType::f16: return 0x1p-24;
    default: return 0x1p-149;
  }
}

double largest_finite(const TensorView& view) {
  double largest = 0;
  const int64_t count = view.elements();
  for (int64_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(element_of(view, i));
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  return largest;
}

}  // namespace

double unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    default: return 0x1p-23;
  }
}

double element_of(const TensorView& view, int64_t index) {
  int64_t offset = 0;
  for (int axis = view.rank() - 1; axis >= 0; --axis) {
    offset += index % view.size(axis) * view.stride(axis);
    index /= view.size(axis);
  }
  return load_as_double(view.dtype(), view.at(offset));
}

double rounding_allowance(const Tensor& result, const Tensor& reference, double term, DType unit_of, double summed) {
  const double sum = unit(unit_of) * term * std::sqrt(std::max(summed, 1.0));
  return kUlps * std::max({sum, smallest(unit_of), smallest(result.dtype())}) +
         unit(result.dtype()) * largest_finite(reference.view());
}

}  // namespace qkv
