// SPDX-License-Identifier: Apache-2.0
#include "nn/sublayer.h"

#include "qkv/support/random.h"

namespace qkv {
namespace {

bool drops(const BlockOptions& options) { return options.dropout.p != 0; }

DropoutOptions dropout_of(const BlockOptions& options, Sublayer which) {
  DropoutOptions result = options.dropout;
  result.seed = mix64(result.seed ^ mix64(static_cast<uint64_t>(which) + 1));
  return result;
}

void pre_norm_forward(const TensorView& x, const BlockOptions& options, Sublayer which, const SublayerNorms& norms,
                      const SublayerRun& run, const MutableTensorView& y, SublayerState* state) {
  Tensor input = normed(x, norms.norm, options, state != nullptr ? &state->before : nullptr);
  if (drops(options)) {
    Tensor branch = Tensor::uninitialised(x.dtype(), x.shape());
    run(input.view(), branch.mutable_view(), {});
    add_branch(options, which, branch.view(), x, y);
  } else {
    run(input.view(), y, x);
  }
  if (state != nullptr) state->normed = std::move(input);
}

void post_norm_forward(const TensorView& x, const BlockOptions& options, Sublayer which, const SublayerNorms& norms,
                       const SublayerRun& run, const MutableTensorView& y, SublayerState* state) {
  Tensor sum = Tensor::uninitialised(x.dtype(), x.shape());
  run(x, sum.mutable_view(), drops(options) ? TensorView() : x);
  if (drops(options)) add_branch(options, which, sum.view(), x, sum.mutable_view());
  normalize(sum.view(), norms.norm.weight, norms.norm.bias, y, norm_options(options),
            state != nullptr ? &state->after : nullptr);
  if (state != nullptr) state->sum = std::move(sum);
}

void sandwich_forward(const TensorView& x, const BlockOptions& options, Sublayer which, const SublayerNorms& norms,
                      const SublayerRun& run, const MutableTensorView& y, SublayerState* state) {
  Tensor input = normed(x, norms.norm, options, state != nullptr ? &state->before : nullptr);
  Tensor branch = Tensor::uninitialised(x.dtype(), x.shape());
  run(input.view(), branch.mutable_view(), {});
  NormalizeState* after = state != nullptr ? &state->after : nullptr;
  if (drops(options)) {
    const Tensor result = normed(branch.view(), norms.after_norm, options, after);
    add_branch(options, which, result.view(), x, y);
  } else {
    NormalizeOptions with_residual = norm_options(options);
    with_residual.residual = x;
    normalize(branch.view(), norms.after_norm.weight, norms.after_norm.bias, y, with_residual, after);
  }
  if (state == nullptr) return;
  state->normed = std::move(input);
  state->branch = std::move(branch);
}

}  // namespace

NormalizeOptions norm_options(const BlockOptions& options) {
  require(!options.norm.residual, "block: the norm's residual should be absent, it is the block's");
  NormalizeOptions result = options.norm;
  result.threads = options.threads;
  return result;
}

Tensor normed(const TensorView& x, const NormParameters& norm, const BlockOptions& options, NormalizeState* state) {
  Tensor y = Tensor::uninitialised(x.dtype(), x.shape());
  normalize(x, norm.weight, norm.bias, y.mutable_view(), norm_options(options), state);
  return y;
}

void add_branch(const BlockOptions& options, Sublayer which, const TensorView& branch, const TensorView& residual,
                const MutableTensorView& y) {
  dropout(branch, dropout_of(options, which), y, residual, options.threads);
}

TensorView branch_gradient(const BlockOptions& options, Sublayer which, const TensorView& d_sum, Tensor& memory) {
  if (!drops(options)) return d_sum;
  memory = Tensor::uninitialised(d_sum.dtype(), d_sum.shape());
  add_branch(options, which, d_sum, {}, memory.mutable_view());
  return memory.view();
}

void sublayer_forward(const TensorView& x, const BlockOptions& options, Sublayer which, const SublayerNorms& norms,
                      const SublayerRun& run, const MutableTensorView& y, SublayerState* state) {
  if (state != nullptr) *state = {};
  switch (options.form) {
    case BlockForm::post_norm: return post_norm_forward(x, options, which, norms, run, y, state);
    case BlockForm::sandwich: return sandwich_forward(x, options, which, norms, run, y, state);
    default: return pre_norm_forward(x, options, which, norms, run, y, state);
  }
}

void sublayer_backward(const SublayerPass& pass, const BlockOptions& options, Sublayer which,
                       const SublayerNorms& norms, const SublayerState& state, const SublayerBackward& backward,
                       const SublayerNormGradients& gradients) {
  const NormalizeOptions norm = norm_options(options);
  const auto rows = [&] { return Tensor::uninitialised(pass.d_y.dtype(), pass.d_y.shape()); };
  Tensor dropped, d_input = rows();
  if (options.form == BlockForm::post_norm) {  // y = N(x + drop(f x))
    Tensor d_sum = rows();
    normalize_backward(state.sum.view(), norms.norm.weight, state.after, pass.d_y, norm,
                       {.x = d_sum.mutable_view(), .weight = gradients.norm.weight, .bias = gradients.norm.bias});
    backward(pass.x, branch_gradient(options, which, d_sum.view(), dropped), d_input.mutable_view());
    return add_scaled(d_input.view(), 1, d_sum.view(), pass.d_x, options.threads);
  }
  TensorView d_branch = branch_gradient(options, which, pass.d_y, dropped);
  Tensor d_before;
  if (options.form == BlockForm::sandwich) {  // P
    d_before = rows();
    normalize_backward(
        state.branch.view(), norms.after_norm.weight, state.after, d_branch, norm,
        {.x = d_before.mutable_view(), .weight = gradients.after_norm.weight, .bias = gradients.after_norm.bias});
    d_branch = d_before.view();
  }
  backward(state.normed.view(), d_branch, d_input.mutable_view());  // x + f(N x)
  normalize_backward(
      pass.x, norms.norm.weight, state.before, d_input.view(), norm,
      {.x = pass.d_x, .x_residual = pass.d_y, .weight = gradients.norm.weight, .bias = gradients.norm.bias});
}

}  // namespace qkv
