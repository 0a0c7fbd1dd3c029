// SPDX-License-Identifier: Apache-2.0
//
// Projections, head norms and rotation around the operation, and the same backwards:
//
//   q = rotate(norm(x Wq^T + bq))     k, v likewise from the memory
//   h = attention(q, k, v)              y = h Wo^T + bo + residual
#include "qkv/nn/multi_head_attention.h"

#include "nn/attention_rows.h"
#include "qkv/kernels/activate.h"
#include "qkv/nn/linear.h"

namespace qkv {
namespace {

constexpr char kLayer[] = "multi_head_attention";

void check_inputs(const TensorView& x, const TensorView& memory, const MultiHeadAttentionOptions& options) {
  check_rows(x, kLayer, "x");
  if (memory) check_rows(memory, kLayer, "the memory");
  if (options.attention.query_starts) return;
  require(options.batch >= 1, kLayer, ": batch should be at least 1, got ", options.batch);
  const TensorView& keys = memory ? memory : x;
  require(x.size(0) % options.batch == 0, kLayer, ": x has ", x.size(0), " rows, no multiple of the batch ",
          options.batch);
  require(keys.size(0) % options.batch == 0, kLayer, ": the memory has ", keys.size(0),
          " rows, no multiple of the batch ", options.batch);
}

/// Backward of `project`: d_rows becomes the gradient before rotation and norm; returns it as [N, columns].
TensorView project_backward(Tensor& d_rows, const ProjectionSteps& steps, const Tensor& unnormed,
                            const NormalizeState& norm_state, const MultiHeadAttentionOptions& options,
                            const NormGradients* gradients) {
  if (steps.rotary != nullptr) rotary_backward(d_rows.mutable_view(), *steps.rotary, options.threads);
  if (steps.norm != nullptr && options.head_norm) {
    NormalizeOptions norm = *options.head_norm;
    norm.threads = options.threads;
    const MutableTensorView d = d_rows.mutable_view();
    normalize_backward(unnormed.view(), steps.norm->weight, norm_state, d, norm,
                       {.x = d, .weight = gradients->weight, .bias = gradients->bias});
  }
  return reshaped(static_cast<const Tensor&>(d_rows), {d_rows.shape()[0], steps.heads * steps.width});
}

/// gradient += term, of at most four axes.
void add_to(const MutableTensorView& gradient, const Tensor& term, int threads) {
  if (!gradient) return;
  if (gradient.rank() <= 3) return add_scaled(term.view(), 1, gradient, gradient, threads);
  const auto part = [](const TensorView& view, int64_t b) {
    return TensorView(view.dtype(), view.at(b * view.stride(0)), {view.size(1), view.size(2), view.size(3)},
                      {view.stride(1), view.stride(2), view.stride(3)});
  };
  for (int64_t b = 0; b < gradient.size(0); ++b) {
    const TensorView to = part(gradient, b);
    const MutableTensorView target(to.dtype(), gradient.at(b * gradient.stride(0)), to.shape(), to.strides());
    add_scaled(part(term.view(), b), 1, target, target, threads);
  }
}

/// Memory for the gradient of a term that is a parameter, where it is wanted.
Tensor term_gradient(const MutableTensorView& wanted, const TensorView& term, const char* name) {
  if (!wanted) return {};
  require(static_cast<bool>(term), kLayer, "_backward: a gradient of ", name, " is wanted, but it is no parameter");
  require(wanted.shape() == term.shape(), kLayer, "_backward: the gradient of ", name, " should be ", term.shape(),
          ", got ", wanted.shape());
  return {term.dtype(), term.shape()};
}

MutableTensorView view_of(Tensor& tensor) { return tensor ? tensor.mutable_view() : MutableTensorView(); }

}  // namespace

void multi_head_attention_forward(const TensorView& x, const TensorView& memory, const MultiHeadAttention& parameters,
                                  const MultiHeadAttentionOptions& options, const MutableTensorView& y,
                                  MultiHeadAttentionState* state) {
  check_inputs(x, memory, options);
  const HeadShape shape = head_shape(parameters, options);
  const TensorView& keys = memory ? memory : x;
  const bool keep = state != nullptr;
  Projection q = project(x, parameters.q, query_steps(shape, parameters, options), options, x.dtype(), keep);
  Projection k = project(keys, parameters.k, key_steps(shape, parameters, options), options, x.dtype(), keep);
  Projection v = project(keys, parameters.v, {.heads = shape.Hkv, .width = shape.Dv}, options, x.dtype(), keep);
  Tensor heads = Tensor::uninitialised(x.dtype(), {x.size(0), shape.H, shape.Dv});
  const AttentionOptions operation = operation_options(parameters, options, !memory);
  const bool packed = static_cast<bool>(operation.query_starts);
  const auto sequences = [&](const Tensor& rows) { return as_sequences(rows.view(), packed, options.batch); };
  const MutableTensorView out = as_sequences(heads.mutable_view(), packed, options.batch);
  if (keep) {
    *state = {};
    state->attention = attention_forward(sequences(q.rows), sequences(k.rows), sequences(v.rows), operation, out);
  } else {
    attention_forward(sequences(q.rows), sequences(k.rows), sequences(v.rows), operation, out, {});
  }
  linear_forward(reshaped(static_cast<const Tensor&>(heads), {x.size(0), shape.H * shape.Dv}), parameters.out, y,
                 {.residual = options.residual, .threads = options.threads});
  if (!keep) return;
  state->q = std::move(q.rows);
  state->k = std::move(k.rows);
  state->v = std::move(v.rows);
  state->q_unnormed = std::move(q.unnormed);
  state->k_unnormed = std::move(k.unnormed);
  state->q_norm = std::move(q.norm);
  state->k_norm = std::move(k.norm);
  state->heads = std::move(heads);
}

void multi_head_attention_backward(const TensorView& x, const TensorView& memory, const MultiHeadAttention& parameters,
                                   const MultiHeadAttentionOptions& options, const MultiHeadAttentionState& state,
                                   const TensorView& d_y, const MultiHeadAttentionInputGradients& d_inputs,
                                   const MultiHeadAttentionGradients& gradients) {
  check_inputs(x, memory, options);
  require(memory || !d_inputs.memory, kLayer, "_backward: a gradient of the memory is wanted, but there is none");
  const HeadShape shape = head_shape(parameters, options);
  require(static_cast<bool>(state.heads), kLayer, "_backward: the state is empty");
  const int threads = options.threads;
  Tensor d_heads = Tensor::uninitialised(x.dtype(), state.heads.shape());
  const Dims flat = {x.size(0), shape.H * shape.Dv};
  linear_backward(reshaped(state.heads, flat), parameters.out, d_y, reshaped(d_heads, flat), gradients.out,
                  {.threads = threads});

  const AttentionOptions operation = operation_options(parameters, options, !memory);
  const bool packed = static_cast<bool>(operation.query_starts);
  const auto sequences = [&](const Tensor& rows) { return as_sequences(rows.view(), packed, options.batch); };
  const auto gradient = [&](Tensor& rows) { return as_sequences(rows.mutable_view(), packed, options.batch); };
  const auto like = [&](const Tensor& rows) { return Tensor::uninitialised(x.dtype(), rows.shape()); };
  Tensor d_q = like(state.q), d_k = like(state.k), d_v = like(state.v);
  Tensor d_bias = term_gradient(gradients.bias, parameters.bias, "bias");
  Tensor d_slopes = term_gradient(gradients.slopes, parameters.slopes, "slopes");
  Tensor d_table = term_gradient(gradients.table, parameters.table, "table");
  Tensor d_sinks = term_gradient(gradients.sinks, parameters.sinks, "sinks");
  attention_backward(sequences(state.q), sequences(state.k), sequences(state.v), operation, state.attention,
                     sequences(d_heads),
                     {.q = gradient(d_q),
                      .k = gradient(d_k),
                      .v = gradient(d_v),
                      .bias = view_of(d_bias),
                      .slopes = view_of(d_slopes),
                      .table = view_of(d_table),
                      .sinks = view_of(d_sinks)});
  add_to(gradients.bias, d_bias, threads);
  add_to(gradients.slopes, d_slopes, threads);
  add_to(gradients.table, d_table, threads);
  add_to(gradients.sinks, d_sinks, threads);

  const TensorView q_rows = project_backward(d_q, query_steps(shape, parameters, options), state.q_unnormed,
                                             state.q_norm, options, &gradients.q_norm);
  const TensorView k_rows = project_backward(d_k, key_steps(shape, parameters, options), state.k_unnormed, state.k_norm,
                                             options, &gradients.k_norm);
  const TensorView v_rows = reshaped(static_cast<const Tensor&>(d_v), {d_v.shape()[0], shape.Hkv * shape.Dv});
  linear_backward(x, parameters.q, q_rows, d_inputs.x, gradients.q, {.threads = threads});
  const TensorView& keys = memory ? memory : x;
  const MutableTensorView& d_keys = memory ? d_inputs.memory : d_inputs.x;
  const TensorView before = memory ? d_inputs.memory_residual : static_cast<const TensorView&>(d_inputs.x);
  linear_backward(keys, parameters.k, k_rows, d_keys, gradients.k, {.residual = before, .threads = threads});
  linear_backward(keys, parameters.v, v_rows, d_keys, gradients.v, {.residual = d_keys, .threads = threads});
}

}  // namespace qkv
