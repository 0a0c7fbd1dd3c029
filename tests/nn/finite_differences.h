// SPDX-License-Identifier: Apache-2.0
//
// Gradients of layers against differences of their values, in f64.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "qkv/tensor/tensor.h"

namespace qkv::test {

/// A tensor that may be moved and the gradient that a backward gave for it, both f64 and row-major.
struct Differentiated {
  std::string name;
  Tensor* value;
  const Tensor* gradient;
};

/// sum d_y y, the number whose gradients backwards give; in `magnitude` the sum of its terms' magnitudes.
double inner_product(const Tensor& d_y, const Tensor& y, double* magnitude = nullptr);

/// For each tensor, along some random directions and some single elements: the gradient's product with the direction
/// against central differences of `loss` with steps h, h / 2 and h / 4, extrapolated twice. The result may be off by
/// what the last extrapolation changed, and by the rounding of the values divided by h.
void expect_gradients(const std::vector<Differentiated>& tensors, const std::function<double(double* magnitude)>& loss);

}  // namespace qkv::test
