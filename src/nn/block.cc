// SPDX-License-Identifier: Apache-2.0
//
// Blocks: self-attention, attention to a memory, feed-forward, one after the other (sublayer.h) or side by side.
#include "qkv/nn/block.h"

#include "nn/sublayer.h"

namespace qkv {
namespace {

bool is_parallel(const BlockOptions& options) {
  return options.form == BlockForm::parallel || options.form == BlockForm::parallel_shared;
}

/// What the sublayers of a block do with their rows; no cross where there is no memory.
struct BlockRuns {
  SublayerRun attention;
  SublayerRun cross;
  SublayerRun feed_forward;
};

void check_block(const TensorView& x, const BlockOptions& options, const MutableTensorView& y, bool has_memory) {
  check_rows(x, "block", "x");
  check_same_rows(y, x, "block", "y", "x");
  require(options.form <= BlockForm::parallel_shared, "block: no form has the number ", static_cast<int>(options.form));
  require(!has_memory || !is_parallel(options), "block: a parallel block attends to no memory, but one came");
  require(!options.attention.residual && !options.cross.residual && !options.feed_forward.residual,
          "block: residuals of sublayers should be absent, they are the block's");
}

/// y = x + drop(A(N1 x)) + drop(F(N3 x)), with N3 = N1 where it is shared.
void parallel_forward(const TensorView& x, const Block& block, const BlockOptions& options, const BlockRuns& runs,
                      const MutableTensorView& y, BlockState* state) {
  const bool is_shared = options.form == BlockForm::parallel_shared;
  const auto saved = [&](SublayerState BlockState::*part) {
    return state != nullptr ? &(state->*part).before : nullptr;
  };
  Tensor first = normed(x, block.attention_norm, options, saved(&BlockState::attention_part));
  Tensor second;
  if (!is_shared) second = normed(x, block.feed_forward_norm, options, saved(&BlockState::feed_forward_part));
  const TensorView feed_forward_input = is_shared ? first.view() : second.view();
  if (options.dropout.p != 0) {
    Tensor branch = Tensor::uninitialised(x.dtype(), x.shape());
    runs.attention(first.view(), branch.mutable_view(), {});
    add_branch(options, Sublayer::attention, branch.view(), x, y);
    runs.feed_forward(feed_forward_input, branch.mutable_view(), {});
    add_branch(options, Sublayer::feed_forward, branch.view(), y, y);
  } else {
    runs.attention(first.view(), y, x);
    runs.feed_forward(feed_forward_input, y, y);
  }
  if (state == nullptr) return;
  state->attention_part.normed = std::move(first);
  state->feed_forward_part.normed = std::move(second);
}

void forward(const TensorView& x, const Block& block, const BlockOptions& options, const BlockRuns& runs,
             const MutableTensorView& y, BlockState* state) {
  if (is_parallel(options)) return parallel_forward(x, block, options, runs, y, state);
  // Rows between sublayers lie in y, or where a state keeps them.
  const auto between = [&](Tensor BlockState::*rows) -> MutableTensorView {
    if (state == nullptr) return y;
    state->*rows = Tensor::uninitialised(x.dtype(), x.shape());
    return (state->*rows).mutable_view();
  };
  const MutableTensorView after_attention = between(&BlockState::after_attention);
  sublayer_forward(x, options, Sublayer::attention, {block.attention_norm, block.attention_after_norm}, runs.attention,
                   after_attention, state != nullptr ? &state->attention_part : nullptr);
  MutableTensorView rows = after_attention;
  if (runs.cross) {
    rows = between(&BlockState::after_cross);
    sublayer_forward(after_attention, options, Sublayer::cross, {block.cross_norm, block.cross_after_norm}, runs.cross,
                     rows, state != nullptr ? &state->cross_part : nullptr);
  }
  sublayer_forward(rows, options, Sublayer::feed_forward, {block.feed_forward_norm, block.feed_forward_after_norm},
                   runs.feed_forward, y, state != nullptr ? &state->feed_forward_part : nullptr);
}

SublayerRun feed_forward_run(const Block& block, const BlockOptions& options, FeedForwardState* state) {
  return
      [&block, &options, state](const TensorView& input, const MutableTensorView& output, const TensorView& residual) {
        FeedForwardOptions feed_forward = options.feed_forward;
        feed_forward.residual = residual;
        feed_forward_forward(input, block.feed_forward, feed_forward, output, state);
      };
}

SublayerRun attention_run(const MultiHeadAttention& parameters, const MultiHeadAttentionOptions& options,
                          const TensorView& memory, MultiHeadAttentionState* state) {
  return [&, state](const TensorView& input, const MutableTensorView& output, const TensorView& residual) {
    MultiHeadAttentionOptions attention = options;
    attention.residual = residual;
    multi_head_attention_forward(input, memory, parameters, attention, output, state);
  };
}

/// The sublayers' own backwards.
struct BlockBackwards {
  SublayerBackward attention;
  SublayerBackward cross;
  SublayerBackward feed_forward;
};

void parallel_backward(const SublayerPass& pass, const Block& block, const BlockOptions& options,
                       const BlockState& state, const BlockBackwards& backwards, const BlockGradients& gradients) {
  const bool is_shared = options.form == BlockForm::parallel_shared;
  const NormalizeOptions norm = norm_options(options);
  const TensorView first = state.attention_part.normed.view();
  const auto rows = [&] { return Tensor::uninitialised(pass.d_y.dtype(), pass.d_y.shape()); };
  Tensor dropped, d_first = rows(), d_second = rows();
  backwards.attention(first, branch_gradient(options, Sublayer::attention, pass.d_y, dropped), d_first.mutable_view());
  backwards.feed_forward(is_shared ? first : state.feed_forward_part.normed.view(),
                         branch_gradient(options, Sublayer::feed_forward, pass.d_y, dropped), d_second.mutable_view());
  TensorView residual = pass.d_y;
  if (is_shared) {
    add_scaled(d_second.view(), 1, d_first.view(), d_first.mutable_view(), options.threads);
  } else {
    normalize_backward(pass.x, block.feed_forward_norm.weight, state.feed_forward_part.before, d_second.view(), norm,
                       {.x = pass.d_x,
                        .x_residual = residual,
                        .weight = gradients.feed_forward_norm.weight,
                        .bias = gradients.feed_forward_norm.bias});
    residual = pass.d_x;
  }
  normalize_backward(pass.x, block.attention_norm.weight, state.attention_part.before, d_first.view(), norm,
                     {.x = pass.d_x,
                      .x_residual = residual,
                      .weight = gradients.attention_norm.weight,
                      .bias = gradients.attention_norm.bias});
}

void backward(const SublayerPass& pass, const Block& block, const BlockOptions& options, const BlockState& state,
              const BlockBackwards& backwards, const BlockGradients& gradients) {
  if (is_parallel(options)) return parallel_backward(pass, block, options, state, backwards, gradients);
  const TensorView after_attention = state.after_attention.view();
  sublayer_backward({backwards.cross ? state.after_cross.view() : after_attention, pass.d_y, pass.d_x}, options,
                    Sublayer::feed_forward, {block.feed_forward_norm, block.feed_forward_after_norm},
                    state.feed_forward_part, backwards.feed_forward,
                    {gradients.feed_forward_norm, gradients.feed_forward_after_norm});
  if (backwards.cross) {
    sublayer_backward({after_attention, pass.d_x, pass.d_x}, options, Sublayer::cross,
                      {block.cross_norm, block.cross_after_norm}, state.cross_part, backwards.cross,
                      {gradients.cross_norm, gradients.cross_after_norm});
  }
  sublayer_backward({pass.x, pass.d_x, pass.d_x}, options, Sublayer::attention,
                    {block.attention_norm, block.attention_after_norm}, state.attention_part, backwards.attention,
                    {gradients.attention_norm, gradients.attention_after_norm});
}

}  // namespace

void block_forward(const TensorView& x, const TensorView& memory, const Block& block, const BlockOptions& options,
                   const MutableTensorView& y, BlockState* state) {
  check_block(x, options, y, static_cast<bool>(memory));
  if (state != nullptr) *state = {};
  const TensorView self;
  BlockRuns runs;
  runs.attention =
      attention_run(block.attention, options.attention, self, state != nullptr ? &state->attention : nullptr);
  if (memory) {
    runs.cross = attention_run(block.cross, options.cross, memory, state != nullptr ? &state->cross : nullptr);
  }
  runs.feed_forward = feed_forward_run(block, options, state != nullptr ? &state->feed_forward : nullptr);
  forward(x, block, options, runs, y, state);
}

void block_backward(const TensorView& x, const TensorView& memory, const Block& block, const BlockOptions& options,
                    const BlockState& state, const TensorView& d_y, const BlockInputGradients& d_inputs,
                    const BlockGradients& gradients) {
  check_rows(x, "block_backward", "x");
  check_same_rows(d_y, x, "block_backward", "d_y", "x");
  Tensor own;
  if (!d_inputs.x) own = Tensor::uninitialised(x.dtype(), x.shape());
  const SublayerPass pass = {x, d_y, d_inputs.x ? d_inputs.x : own.mutable_view()};
  BlockBackwards backwards;
  backwards.attention = [&](const TensorView& input, const TensorView& d_output, const MutableTensorView& d_input) {
    multi_head_attention_backward(input, {}, block.attention, options.attention, state.attention, d_output,
                                  {.x = d_input}, gradients.attention);
  };
  if (memory) {
    backwards.cross = [&](const TensorView& input, const TensorView& d_output, const MutableTensorView& d_input) {
      multi_head_attention_backward(input, memory, block.cross, options.cross, state.cross, d_output,
                                    {.x = d_input, .memory = d_inputs.memory, .memory_residual = d_inputs.memory},
                                    gradients.cross);
    };
  }
  backwards.feed_forward = [&](const TensorView& input, const TensorView& d_output, const MutableTensorView& d_input) {
    feed_forward_backward(input, block.feed_forward, options.feed_forward, state.feed_forward, d_output, d_input,
                          gradients.feed_forward);
  };
  backward(pass, block, options, state, backwards, gradients);
}

void block_cached(const TensorView& x, const Block& block, const BlockOptions& options, const BlockCache& cache,
                  const MutableTensorView& y) {
  check_block(x, options, y, cache.cross != nullptr);
  require(cache.self != nullptr, "block: a cache for self-attention is needed, none came");
  BlockRuns runs;
  runs.attention = [&](const TensorView& input, const MutableTensorView& output, const TensorView& residual) {
    MultiHeadAttentionOptions attention = options.attention;
    attention.residual = residual;
    multi_head_attention_append(input, attention.attention.query_starts, block.attention, attention, *cache.self);
    multi_head_attention_cached(input, block.attention, attention, *cache.self, output);
  };
  if (cache.cross != nullptr) {
    runs.cross = [&](const TensorView& input, const MutableTensorView& output, const TensorView& residual) {
      MultiHeadAttentionOptions attention = options.cross;
      attention.residual = residual;
      multi_head_attention_cached(input, block.cross, attention, *cache.cross, output);
    };
  }
  runs.feed_forward = feed_forward_run(block, options, nullptr);
  forward(x, block, options, runs, y, nullptr);
}

}  // namespace qkv
