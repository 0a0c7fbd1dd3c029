// SPDX-License-Identifier: Apache-2.0
// Activations, their derivatives and dropout on views: checks and the cut into items; the arithmetic is
// elementwise-inl.h's.
#include "qkv/kernels/activate.h"

#include "kernels/layer_kernels.h"
#include "kernels/layer_rows.h"
#include "qkv/support/error.h"
#include "qkv/support/random.h"

namespace qkv {
namespace {

/// run(kernels of the compute type, first row, count) for every run of rows of x.
template <class Run>
void run_rows(const TensorView& x, int threads, const Run& run) {
  if (x.elements() == 0) return;
  const int used = x.elements() < 2 * kLayerItem ? 1 : threads;
  for_each_rows(x, rows_per_item(width_of(x)), used, [&](int64_t first, int64_t count, int64_t, int) {
    if (x.dtype() == DType::f64) {
      run(kernels().layers<double>(), first, count);
    } else {
      run(kernels().layers<float>(), first, count);
    }
  });
}

void check_activation(const char* operation, Activation activation) {
  require(activation <= Activation::silu, operation, ": no activation has the number ", static_cast<int>(activation));
}

}  // namespace

void activate(const TensorView& x, const TensorView& gate, Activation activation, const MutableTensorView& y,
              int threads) {
  const LayerCheck check("activate", "x", x);
  check.like_first("gate", gate);
  check.like_first("y", y, true);
  check.threads(threads);
  check_activation("activate", activation);
  check.output("y", y, {x, gate});
  run_rows(x, threads, [&](const auto& set, int64_t first, int64_t count) {
    set.activate({rows_part(x, first, count), rows_part(gate, first, count), rows_part(y, first, count), activation});
  });
}

void activate_backward(const TensorView& x, const TensorView& gate, Activation activation, const TensorView& d_y,
                       const ActivateGradients& gradients, int threads) {
  const LayerCheck check("activate_backward", "x", x);
  check.like_first("gate", gate);
  check.like_first("d_y", d_y, true);
  check.like_first("the gradient of x", gradients.x);
  check.like_first("the gradient of the gate", gradients.gate);
  check.threads(threads);
  check_activation("activate_backward", activation);
  require(gate || !gradients.gate, "activate_backward: a gradient of the gate is wanted, but there is no gate");
  check.output("the gradient of x", gradients.x, {x, gate, d_y});
  check.output("the gradient of the gate", gradients.gate, {x, gate, d_y});
  check.apart("the gradient of x", gradients.x, "that of the gate", gradients.gate);
  run_rows(x, threads, [&](const auto& set, int64_t first, int64_t count) {
    set.activate_backward({rows_part(x, first, count), rows_part(gate, first, count), rows_part(d_y, first, count),
                           rows_part(gradients.x, first, count), rows_part(gradients.gate, first, count), activation});
  });
}

void add_scaled(const TensorView& x, double scale, const TensorView& residual, const MutableTensorView& y,
                int threads) {
  const LayerCheck check("add_scaled", "x", x);
  check.like_first("residual", residual);
  check.like_first("y", y, true);
  check.threads(threads);
  check.output("y", y, {x, residual});
  run_rows(x, threads, [&]<class T>(const LayerKernels<T>& set, int64_t first, int64_t count) {
    set.add({rows_part(x, first, count), rows_part(residual, first, count), rows_part(y, first, count),
             static_cast<T>(scale)});
  });
}

void dropout(const TensorView& x, const DropoutOptions& options, const MutableTensorView& y, const TensorView& residual,
             int threads) {
  const LayerCheck check("dropout", "x", x);
  check.like_first("residual", residual);
  check.like_first("y", y, true);
  check.threads(threads);
  require(options.p >= 0 && options.p < 1, "dropout: p should lie in [0, 1), got ", options.p);
  require(options.first_row >= 0, "dropout: first_row should be 0 or more, got ", options.first_row);
  check.output("y", y, {x, residual});
  run_rows(x, threads, [&](const auto& set, int64_t first, int64_t count) {
    set.dropout({.x = rows_part(x, first, count),
                 .residual = rows_part(residual, first, count),
                 .y = rows_part(y, first, count),
                 .seed = options.seed,
                 .first_row = options.first_row + first,
                 .threshold = dropout_threshold(options.p),
                 .keep = 1 / (1 - options.p)});
  });
}

}  // namespace qkv
