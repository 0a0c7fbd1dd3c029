// SPDX-License-Identifier: Apache-2.0
#include "nn/attention_rows.h"

#include "qkv/nn/linear.h"

namespace qkv {
namespace {

constexpr char kLayer[] = "multi_head_attention";

/// One of the terms that parameters and options may both name.
void choose(TensorView& option, const TensorView& parameter, const char* name) {
  if (!parameter) return;
  require(!option, kLayer, ": ", name, " stands among the parameters and among the options");
  option = parameter;
}

TensorView sequences(const TensorView& rows, bool packed, int64_t batch) {
  if (packed) return rows;
  const int64_t T = batch == 0 ? 0 : rows.size(0) / batch;
  return {rows.dtype(),
          rows.data(),
          {batch, rows.size(1), T, rows.size(2)},
          {T * rows.stride(0), rows.stride(1), rows.stride(0), rows.stride(2)}};
}

}  // namespace

HeadShape head_shape(const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options) {
  HeadShape shape{options.heads, options.kv_heads == 0 ? options.heads : options.kv_heads, 0, 0};
  require(shape.H >= 1, kLayer, ": heads should be at least 1, got ", shape.H);
  require(shape.Hkv >= 1 && shape.H % shape.Hkv == 0, kLayer, ": kv_heads should divide the ", shape.H, " heads, got ",
          shape.Hkv);
  const int64_t q = outputs_of(parameters.q, kLayer, "q"), k = outputs_of(parameters.k, kLayer, "k");
  const int64_t v = outputs_of(parameters.v, kLayer, "v");
  require(q % shape.H == 0, kLayer, ": q gives ", q, " columns, no multiple of ", shape.H, " heads");
  shape.D = q / shape.H;
  require(k == shape.Hkv * shape.D, kLayer, ": k should give ", shape.Hkv, " heads of ", shape.D, ", got ", k,
          " columns");
  require(v % shape.Hkv == 0, kLayer, ": v gives ", v, " columns, no multiple of ", shape.Hkv, " heads");
  shape.Dv = v / shape.Hkv;
  require(options.head_norm || (!parameters.q_norm.weight && !parameters.k_norm.weight), kLayer,
          ": q_norm and k_norm need the option head_norm");
  require(!options.head_norm || !options.head_norm->residual, kLayer, ": the residual of head_norm should be absent");
  return shape;
}

Projection project(const TensorView& x, const Linear& linear, const ProjectionSteps& steps,
                   const MultiHeadAttentionOptions& options, DType dtype, bool keep) {
  const int64_t N = x.size(0), columns = steps.heads * steps.width;
  Projection result;
  result.rows = Tensor::uninitialised(dtype, {N, steps.heads, steps.width});
  linear_forward(x, linear, reshaped(result.rows, {N, columns}), {.threads = options.threads});
  if (steps.norm != nullptr && options.head_norm) {
    NormalizeOptions norm = *options.head_norm;
    norm.threads = options.threads;
    if (keep) {
      result.unnormed = std::move(result.rows);
      result.rows = Tensor::uninitialised(dtype, result.unnormed.shape());
    }
    const TensorView before = keep ? result.unnormed.view() : result.rows.view();
    normalize(before, steps.norm->weight, steps.norm->bias, result.rows.mutable_view(), norm,
              keep ? &result.norm : nullptr);
  }
  if (steps.rotary != nullptr) rotary_forward(result.rows.mutable_view(), *steps.rotary, options.threads);
  return result;
}

ProjectionSteps query_steps(const HeadShape& shape, const MultiHeadAttention& parameters,
                            const MultiHeadAttentionOptions& options) {
  return {shape.H, shape.D, &parameters.q_norm, options.rotary};
}

ProjectionSteps key_steps(const HeadShape& shape, const MultiHeadAttention& parameters,
                          const MultiHeadAttentionOptions& options) {
  return {shape.Hkv, shape.D, &parameters.k_norm, options.key_rotary != nullptr ? options.key_rotary : options.rotary};
}

TensorView as_sequences(const TensorView& rows, bool packed, int64_t batch) { return sequences(rows, packed, batch); }

MutableTensorView as_sequences(const MutableTensorView& rows, bool packed, int64_t batch) {
  const TensorView view = sequences(rows, packed, batch);
  return {view.dtype(), rows.data(), view.shape(), view.strides()};
}

AttentionOptions operation_options(const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options,
                                   bool self) {
  AttentionOptions result = options.attention;
  choose(result.bias, parameters.bias, "bias");
  choose(result.slopes, parameters.slopes, "slopes");
  choose(result.table, parameters.table, "table");
  choose(result.sinks, parameters.sinks, "sinks");
  if (self && result.query_starts && !result.key_starts) result.key_starts = result.query_starts;
  if (result.threads == 0) result.threads = options.threads;
  return result;
}

}  // namespace qkv
