// SPDX-License-Identifier: Apache-2.0
// Normalisation: checks, weights widened once, rows cut into items; the arithmetic is normalize-inl.h's.
//
// Gradients of weight and bias sum over rows. Blocks of 64 rows are summed in order from zero by whoever has the block,
// the blocks then in order in f64: which thread had which block changes nothing. They take 1/64 of x's memory each.
#include "qkv/kernels/normalize.h"

#include <cmath>

#include "kernels/layer_kernels.h"
#include "kernels/layer_rows.h"
#include "qkv/support/checked.h"
#include "qkv/support/error.h"
#include "support/aligned.h"

namespace qkv {
namespace {

constexpr int64_t kBlockRows = 64;

void check_options(const char* operation, const NormalizeOptions& options) {
  require(std::isfinite(options.epsilon) && options.epsilon >= 0, operation,
          ": epsilon should be a finite number, 0 or more, got ", options.epsilon);
  require(std::isfinite(options.weight_offset), operation, ": weight_offset should be finite, got ",
          options.weight_offset);
}

/// weight_offset + weight, or the bias, as whole vectors of the compute type; empty where nothing is applied.
template <class T>
AlignedArray<T> widened(const TensorView& vector, double offset, int64_t width) {
  if (!vector && offset == 0) return {};
  const int64_t padded = round_up(width, kLayerPadding);
  AlignedArray<T> values(padded);
  if (vector) kernels().layers<T>().widen(rows_part(vector, 0, 1), values.get(), padded);
  for (int64_t c = 0; offset != 0 && c < width; ++c) values[c] += static_cast<T>(offset);
  return values;
}

/// The weight of an absent view is 1, whatever the offset.
template <class T>
AlignedArray<T> widened_weight(const TensorView& weight, double offset, int64_t width) {
  return widened<T>(weight, weight ? offset : 0, width);
}

int useful_threads(const TensorView& x, int threads) { return x.elements() < 2 * kLayerItem ? 1 : threads; }

template <class T>
void run_normalize(const TensorView& x, const TensorView& weight, const TensorView& bias, const MutableTensorView& y,
                   const NormalizeOptions& options, NormalizeState* state) {
  const int64_t width = width_of(x), rows = rows_of(x), padded = round_up(width, kLayerPadding);
  const bool is_layer = options.kind == NormKind::layer;
  T* mean = nullptr;
  T* inverse = nullptr;
  if (state != nullptr) {
    *state = {};
    state->inverse = Tensor(DTypeOf<T>::value, {rows});
    inverse = static_cast<T*>(state->inverse.mutable_view().data());
    if (is_layer) {
      state->mean = Tensor(DTypeOf<T>::value, {2, rows});
      mean = static_cast<T*>(state->mean.mutable_view().data());
    }
  }
  if (x.elements() == 0) return;
  const AlignedArray<T> weights = widened_weight<T>(weight, options.weight_offset, width);
  const AlignedArray<T> biases = widened<T>(bias, 0, width);
  const int threads = useful_threads(x, options.threads);
  const int64_t item_rows = rows_per_item(width);
  const AlignedArray<T> scratch(parallel_workers(ceil_divide(rows, item_rows), threads) * 3 * padded, kUninitialised);
  for_each_rows(x, item_rows, threads, [&](int64_t first, int64_t count, int64_t, int worker) {
    kernels().layers<T>().normalize({.x = rows_part(x, first, count),
                                     .residual = rows_part(options.residual, first, count),
                                     .y = rows_part(y, first, count),
                                     .weight = weights.get(),
                                     .bias = biases.get(),
                                     .subtracts_mean = is_layer,
                                     .epsilon = static_cast<T>(options.epsilon),
                                     .mean = mean == nullptr ? nullptr : mean + first,
                                     .mean_low = mean == nullptr ? nullptr : mean + rows + first,
                                     .inverse = inverse == nullptr ? nullptr : inverse + first,
                                     .scratch = scratch.get() + worker * 3 * padded});
  });
}

/// gradient += the sum of the blocks' sums, in order.
template <class T>
void add_blocks(const AlignedArray<T>& sums, int64_t blocks, int64_t padded, const MutableTensorView& gradient,
                int threads) {
  constexpr int64_t kColumns = 512;
  const int64_t width = gradient.size(0);
  parallel_for(ceil_divide(width, kColumns), threads, [&](int64_t item, int) {
    const int64_t begin = item * kColumns, end = std::min(width, begin + kColumns);
    double totals[kColumns] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      const T* row = sums.get() + block * padded;
      for (int64_t c = begin; c < end; ++c) totals[c - begin] += static_cast<double>(row[c]);
    }
    for (int64_t c = begin; c < end; ++c) {
      void* element = gradient.at(c * gradient.stride(0));
      store_from_double(gradient.dtype(), element, load_as_double(gradient.dtype(), element) + totals[c - begin]);
    }
  });
}

template <class T>
void run_backward(const TensorView& x, const TensorView& weight, const NormalizeState& state, const TensorView& d_y,
                  const NormalizeOptions& options, const NormalizeGradients& gradients) {
  if (x.elements() == 0) {
    return;
  }
  const int64_t width = width_of(x), rows = rows_of(x), padded = round_up(width, kLayerPadding);
  const int64_t blocks = ceil_divide(rows, kBlockRows);
  const AlignedArray<T> weights = widened_weight<T>(weight, options.weight_offset, width);
  const int64_t sums = checked_multiply(blocks, padded, "normalize: sums of blocks");
  const AlignedArray<T> d_weight(gradients.weight ? sums : 0), d_bias(gradients.bias ? sums : 0);
  const int threads = useful_threads(x, options.threads);
  const AlignedArray<T> scratch(parallel_workers(blocks, threads) * 4 * padded, kUninitialised);
  const T* mean = state.mean ? static_cast<const T*>(state.mean.view().data()) : nullptr;
  const T* inverse = static_cast<const T*>(state.inverse.view().data());
  for_each_rows(x, kBlockRows, threads, [&](int64_t first, int64_t count, int64_t block, int worker) {
    kernels().layers<T>().normalize_backward({.x = rows_part(x, first, count),
                                              .d_y = rows_part(d_y, first, count),
                                              .residual = rows_part(gradients.x_residual, first, count),
                                              .d_x = rows_part(gradients.x, first, count),
                                              .weight = weights.get(),
                                              .mean = mean == nullptr ? nullptr : mean + first,
                                              .mean_low = mean == nullptr ? nullptr : mean + rows + first,
                                              .inverse = inverse + first,
                                              .d_weight = gradients.weight ? d_weight.get() + block * padded : nullptr,
                                              .d_bias = gradients.bias ? d_bias.get() + block * padded : nullptr,
                                              .scratch = scratch.get() + worker * 4 * padded});
  });
  if (gradients.weight) add_blocks(d_weight, blocks, padded, gradients.weight, threads);
  if (gradients.bias) add_blocks(d_bias, blocks, padded, gradients.bias, threads);
}

void check_state(const TensorView& x, const NormalizeState& state, NormKind kind) {
  const DType compute = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const bool fits = state.inverse && state.inverse.dtype() == compute && state.inverse.shape() == Dims{rows_of(x)} &&
                    static_cast<bool>(state.mean) == (kind == NormKind::layer) &&
                    (!state.mean || (state.mean.dtype() == compute && state.mean.shape() == Dims{2, rows_of(x)}));
  require(fits, "normalize_backward: the state is not that of a forward of x ", x.shape());
}

}  // namespace

void normalize(const TensorView& x, const TensorView& weight, const TensorView& bias, const MutableTensorView& y,
               const NormalizeOptions& options, NormalizeState* state) {
  const LayerCheck check("normalize", "x", x);
  check.vector("weight", weight, width_of(x));
  check.vector("bias", bias, width_of(x));
  check.like_first("y", y, true);
  check.like_first("residual", options.residual);
  check.threads(options.threads);
  check_options("normalize", options);
  check.output("y", y, {x, options.residual});
  check.apart("y", y, "weight", weight);
  check.apart("y", y, "bias", bias);
  if (x.dtype() == DType::f64) {
    run_normalize<double>(x, weight, bias, y, options, state);
  } else {
    run_normalize<float>(x, weight, bias, y, options, state);
  }
}

void normalize_backward(const TensorView& x, const TensorView& weight, const NormalizeState& state,
                        const TensorView& d_y, const NormalizeOptions& options, const NormalizeGradients& gradients) {
  const LayerCheck check("normalize_backward", "x", x);
  check.vector("weight", weight, width_of(x));
  check.like_first("d_y", d_y, true);
  check.like_first("the gradient of x", gradients.x);
  check.like_first("the residual of x", gradients.x_residual);
  check.vector("the gradient of the weight", gradients.weight, width_of(x));
  check.vector("the gradient of the bias", gradients.bias, width_of(x));
  check.threads(options.threads);
  check_options("normalize_backward", options);
  check_state(x, state, options.kind);
  check.output("the gradient of x", gradients.x, {x, d_y, gradients.x_residual});
  for (const MutableTensorView& gradient : {gradients.weight, gradients.bias}) {
    check.output("the gradient of a parameter", gradient, {});
    for (const TensorView& other : {x, d_y, weight, static_cast<const TensorView&>(gradients.x)}) {
      check.apart("the gradient of a parameter", gradient, "another operand", other);
    }
  }
  check.apart("the gradient of the weight", gradients.weight, "that of the bias", gradients.bias);
  if (x.dtype() == DType::f64) {
    run_backward<double>(x, weight, state, d_y, options, gradients);
  } else {
    run_backward<float>(x, weight, state, d_y, options, gradients);
  }
}

}  // namespace qkv
