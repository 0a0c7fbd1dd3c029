// SPDX-License-Identifier: Apache-2.0
//
// down(dropout(activation(up x))) and, gated, down(dropout(activation(gate x) * (up x))). Without a state the
// activation and the gate's product are the end of a matrix product; with one, what the activation was applied to is
// kept unrounded, so that both ways round the same numbers.
#include "qkv/nn/feed_forward.h"

#include "nn/rows.h"
#include "qkv/nn/linear.h"

namespace qkv {
namespace {

constexpr char kLayer[] = "feed_forward";

void drop(const MutableTensorView& rows, const FeedForwardOptions& options) {
  if (options.dropout.p != 0) dropout(rows, options.dropout, rows, {}, options.threads);
}

}  // namespace

void feed_forward_forward(const TensorView& x, const FeedForward& parameters, const FeedForwardOptions& options,
                          const MutableTensorView& y, FeedForwardState* state) {
  check_rows(x, kLayer, "x");
  const Dims shape = {x.size(0), outputs_of(parameters.up, kLayer, "up")};
  const bool is_gated = is_present(parameters.gate);
  Tensor up, before, hidden = Tensor::uninitialised(x.dtype(), shape);
  if (is_gated) {
    up = Tensor::uninitialised(x.dtype(), shape);
    linear_forward(x, parameters.up, up.mutable_view(), {.threads = options.threads});
  }
  const Linear& activated = is_gated ? parameters.gate : parameters.up;
  if (state != nullptr) {
    before = Tensor::uninitialised(compute_type_of(x), shape);
    linear_forward(x, activated, before.mutable_view(), {.threads = options.threads});
    activate(before.view(), up.view(), options.activation, hidden.mutable_view(), options.threads);
  } else {
    linear_forward(x, activated, hidden.mutable_view(),
                   {.activation = options.activation, .gate = up.view(), .threads = options.threads});
  }
  drop(hidden.mutable_view(), options);
  linear_forward(hidden.view(), parameters.down, y, {.residual = options.residual, .threads = options.threads});
  if (state != nullptr) *state = {std::move(before), std::move(up), std::move(hidden)};
}

void feed_forward_backward(const TensorView& x, const FeedForward& parameters, const FeedForwardOptions& options,
                           const FeedForwardState& state, const TensorView& d_y, const MutableTensorView& d_x,
                           const FeedForwardGradients& gradients) {
  check_rows(x, kLayer, "x");
  require(static_cast<bool>(state.hidden), kLayer, "_backward: the state is empty");
  const bool is_gated = is_present(parameters.gate);
  const int threads = options.threads;
  Tensor d_up, d_hidden = Tensor::uninitialised(x.dtype(), state.hidden.shape());
  linear_backward(state.hidden.view(), parameters.down, d_y, d_hidden.mutable_view(), gradients.down,
                  {.threads = threads});
  drop(d_hidden.mutable_view(), options);
  if (is_gated) d_up = Tensor::uninitialised(x.dtype(), state.hidden.shape());
  // d_hidden becomes the gradient of what the activation was applied to.
  activate_backward(state.before.view(), state.up.view(), options.activation, d_hidden.view(),
                    {d_hidden.mutable_view(), is_gated ? d_up.mutable_view() : MutableTensorView()}, threads);
  linear_backward(x, is_gated ? parameters.gate : parameters.up, d_hidden.view(), d_x,
                  is_gated ? gradients.gate : gradients.up, {.threads = threads});
  if (is_gated)
    linear_backward(x, parameters.up, d_up.view(), d_x, gradients.up, {.residual = d_x, .threads = threads});
}

}  // namespace qkv
