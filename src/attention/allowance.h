// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/tensor/tensor.h"

namespace qkv {

/// Distance from 1 to the next number of a dtype.
double unit(DType dtype);

/// Element at a row-major index of any view.
double element_of(const TensorView& view, int64_t index);

/// A few ulps of the largest term, of which one element sums `summed`: independent roundings of n terms add up as
/// sqrt(n). `unit_of` is the coarsest type that the terms are rounded to. And an ulp of the largest result, for its
/// final store.
double rounding_allowance(const Tensor& result, const Tensor& reference, double term, DType unit_of, double summed);

}  // namespace qkv
