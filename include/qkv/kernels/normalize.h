// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/tensor/tensor.h"

namespace qkv {

enum class NormKind : uint8_t {
  layer,  ///< y = (x - mean) / sqrt(variance + epsilon) * weight + bias
  rms,    ///< y = x / sqrt(mean of squares + epsilon) * weight + bias
};

// Normalisation of rows. x is [..., width] with one to three axes, of any strides; all axes but the last count rows.
// The weight is weight_offset + `weight` (1 where that is absent), the bias 0 where it is absent.
//
// Compute type: f64 when x is f64 (then everything else is too), f32 otherwise. A result is rounded once, at its store.
// Same bits: a row of y, and of d_x, depends on that row, the weight, the bias and the instruction set alone. Sums over
// a row run in an order that its width fixes; the mean is taken twice, the second time of deviations from the first, so
// that a large mean costs the deviations no accuracy.

struct NormalizeOptions {
  NormKind kind = NormKind::layer;
  double epsilon = 1e-5;     ///< not negative
  double weight_offset = 0;  ///< added to the weight: 1 in Gemma's checkpoints
  TensorView residual = {};  ///< of x's shape, added last; y itself for y += norm(x)
  int threads = 0;           ///< 0: all CPUs this process may use
};

/// What the backward needs beside x: two or three numbers a row.
struct NormalizeState {
  Tensor mean;     ///< [2, rows] of the compute type, the sum of both parts is the mean; absent for rms
  Tensor inverse;  ///< [rows], 1 / sqrt(variance + epsilon)
};

/// y[r, :] = norm(x[r, :]) * (weight_offset + weight) + bias + residual[r, :]. weight and bias [width] may be absent; y
/// has x's shape and may be x itself. All are f32, bf16 or f16, each its own, or all f64. `state` may be null.
/// Throws Error naming what does not fit, before anything is written.
void normalize(const TensorView& x, const TensorView& weight, const TensorView& bias, const MutableTensorView& y,
               const NormalizeOptions& options = {}, NormalizeState* state = nullptr);

/// Where gradients go; an absent view is not wanted. `x` is overwritten with its gradient plus `x_residual`, which may
/// be `x` itself; weight and bias are added to.
struct NormalizeGradients {
  MutableTensorView x = {};
  TensorView x_residual = {};
  MutableTensorView weight = {};
  MutableTensorView bias = {};
};

/// With xhat = (x - mean) inverse (for rms x inverse), w = weight_offset + weight, g = d_y w and means over the width:
///   d_x = inverse (g - mean(g) - xhat mean(g xhat))     rms: inverse (g - xhat mean(g xhat))
///   d_weight += sum over rows of d_y xhat               d_bias += sum over rows of d_y
/// The residual's gradient is d_y. Sums over rows run in order inside blocks of 64 rows, then over blocks in order, in
/// f64. `gradients.x` may be d_y itself. `state` comes from the forward of the same x and options.
void normalize_backward(const TensorView& x, const TensorView& weight, const NormalizeState& state,
                        const TensorView& d_y, const NormalizeOptions& options, const NormalizeGradients& gradients);

}  // namespace qkv
