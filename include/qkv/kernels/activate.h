// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qkv/kernels/matmul.h"

namespace qkv {

// Element by element, on views of one to three axes and any strides: f32, bf16 and f16, each its own, or all f64. The
// values are those that matmul applies (`Activation`), the derivatives have the same accuracy. Each throws Error naming
// what does not fit, before anything is written; an output may be one of the inputs, else it must not overlap them.
// `threads` 0: all CPUs this process may use.

/// y = activation(x) * gate; an absent gate is 1.
void activate(const TensorView& x, const TensorView& gate, Activation activation, const MutableTensorView& y,
              int threads = 0);

struct ActivateGradients {
  MutableTensorView x = {};
  MutableTensorView gate = {};  ///< only with a gate
};

/// d_x = d_y gate activation'(x), d_gate = d_y activation(x); both overwritten, an absent view is not wanted. The
/// derivative of relu at 0 is 0.
void activate_backward(const TensorView& x, const TensorView& gate, Activation activation, const TensorView& d_y,
                       const ActivateGradients& gradients, int threads = 0);

/// y = scale x + residual; an absent residual is 0.
void add_scaled(const TensorView& x, double scale, const TensorView& residual, const MutableTensorView& y,
                int threads = 0);

/// Which elements dropout keeps: a pure function of (seed, first_row + row, column), where a row is an index over all
/// axes but the last. It knows no threads, schedule or call.
struct DropoutOptions {
  double p = 0;  ///< in [0, 1); 0 keeps all
  uint64_t seed = 0;
  int64_t first_row = 0;
};

/// y = r x + residual, r = 1 / (1 - p) where kept and 0 (also of NaN) where dropped. An absent residual is 0. Its
/// derivative is the same call with d_y as x.
void dropout(const TensorView& x, const DropoutOptions& options, const MutableTensorView& y,
             const TensorView& residual = {}, int threads = 0);

}  // namespace qkv
