// SPDX-License-Identifier: Apache-2.0
#include "qkv/nn/stack.h"

#include "nn/rows.h"
#include "qkv/support/random.h"

namespace qkv {
namespace {

void check_stack(const Stack& stack, const StackOptions& options, const TensorView& x, const MutableTensorView& y) {
  check_rows(x, "stack", "x");
  check_same_rows(y, x, "stack", "y", "x");
  require(options.blocks.size() == stack.blocks.size() || options.blocks.size() == 1 || stack.blocks.empty(),
          "stack: options should be one for all ", stack.blocks.size(), " blocks or one for each, got ",
          options.blocks.size());
  require(!options.final_norm || !options.final_norm->residual, "stack: the final norm's residual should be absent");
}

/// The options of block i: where all blocks share them, every seed is mixed with i, so that each drops on its own.
BlockOptions options_of(const StackOptions& options, size_t i) {
  if (options.blocks.size() != 1) return options.blocks[i];
  BlockOptions result = options.blocks.front();
  const auto mixed = [i](uint64_t seed) { return mix64(seed ^ mix64(i)); };
  result.dropout.seed = mixed(result.dropout.seed);
  result.feed_forward.dropout.seed = mixed(result.feed_forward.dropout.seed);
  for (MultiHeadAttentionOptions* attention : {&result.attention, &result.cross}) {
    if (attention->attention.seed) attention->attention.seed = mixed(*attention->attention.seed);
  }
  return result;
}

/// block(i, rows, where they go) for every block, then the final norm. Without a state rows lie in y.
template <class RunBlock>
void run_stack(const TensorView& x, const Stack& stack, const StackOptions& options, const MutableTensorView& y,
               StackState* state, const RunBlock& run_block) {
  const size_t blocks = stack.blocks.size();
  if (state != nullptr) {
    *state = {};
    state->blocks.resize(blocks);
  }
  TensorView rows = x;
  for (size_t i = 0; i < blocks; ++i) {
    const bool is_last = i + 1 == blocks && !options.final_norm;
    MutableTensorView to = y;
    if (state != nullptr && !is_last) {
      state->inputs.emplace_back(x.dtype(), x.shape());
      to = state->inputs.back().mutable_view();
    }
    run_block(i, rows, to);
    rows = to;
  }
  if (options.final_norm) {
    normalize(rows, stack.final_norm.weight, stack.final_norm.bias, y, *options.final_norm,
              state != nullptr ? &state->final_norm : nullptr);
  } else if (blocks == 0) {
    add_scaled(x, 1, {}, y);
  }
}

}  // namespace

void stack_forward(const TensorView& x, const TensorView& memory, const Stack& stack, const StackOptions& options,
                   const MutableTensorView& y, StackState* state) {
  check_stack(stack, options, x, y);
  run_stack(x, stack, options, y, state, [&](size_t i, const TensorView& rows, const MutableTensorView& to) {
    block_forward(rows, memory, stack.blocks[i], options_of(options, i), to,
                  state != nullptr ? &state->blocks[i] : nullptr);
  });
}

void stack_cached(const TensorView& x, const Stack& stack, const StackOptions& options,
                  std::span<const BlockCache> caches, const MutableTensorView& y) {
  check_stack(stack, options, x, y);
  require(caches.size() == stack.blocks.size(), "stack: ", stack.blocks.size(), " blocks need as many caches, got ",
          caches.size());
  run_stack(x, stack, options, y, nullptr, [&](size_t i, const TensorView& rows, const MutableTensorView& to) {
    block_cached(rows, stack.blocks[i], options_of(options, i), caches[i], to);
  });
}

void stack_backward(const TensorView& x, const TensorView& memory, const Stack& stack, const StackOptions& options,
                    const StackState& state, const TensorView& d_y, const BlockInputGradients& d_inputs,
                    const StackGradients& gradients) {
  check_rows(x, "stack_backward", "x");
  check_same_rows(d_y, x, "stack_backward", "d_y", "x");
  const size_t blocks = stack.blocks.size();
  require(gradients.blocks.size() == blocks, "stack_backward: gradients should be of ", blocks, " blocks, got ",
          gradients.blocks.size());
  require(state.blocks.size() == blocks && state.inputs.size() + (options.final_norm ? 0 : 1) >= blocks,
          "stack_backward: the state is not that of a forward of this stack");
  Tensor own;
  if (!d_inputs.x) own = Tensor::uninitialised(x.dtype(), x.shape());
  const MutableTensorView d_x = d_inputs.x ? d_inputs.x : own.mutable_view();
  const auto input_of = [&](size_t i) { return i == 0 ? x : state.inputs[i - 1].view(); };
  TensorView d_rows = d_y;
  if (options.final_norm) {
    normalize_backward(input_of(blocks), stack.final_norm.weight, state.final_norm, d_y, *options.final_norm,
                       {.x = d_x, .weight = gradients.final_norm.weight, .bias = gradients.final_norm.bias});
    d_rows = d_x;
  } else if (blocks == 0) {
    add_scaled(d_y, 1, {}, d_x);
  }
  for (size_t i = blocks; i-- > 0;) {
    block_backward(input_of(i), memory, stack.blocks[i], options_of(options, i), state.blocks[i], d_rows,
                   {.x = d_x, .memory = d_inputs.memory}, gradients.blocks[i]);
    d_rows = d_x;
  }
}

void encoder_decoder_forward(const TensorView& source, const TensorView& target, const EncoderDecoder& model,
                             const EncoderDecoderOptions& options, const MutableTensorView& y,
                             EncoderDecoderState* state) {
  check_rows(source, "encoder_decoder", "source");
  Tensor memory = Tensor::uninitialised(source.dtype(), source.shape());
  stack_forward(source, {}, model.encoder, options.encoder, memory.mutable_view(),
                state != nullptr ? &state->encoder : nullptr);
  stack_forward(target, memory.view(), model.decoder, options.decoder, y, state != nullptr ? &state->decoder : nullptr);
  if (state != nullptr) state->memory = std::move(memory);
}

void encoder_decoder_backward(const TensorView& source, const TensorView& target, const EncoderDecoder& model,
                              const EncoderDecoderOptions& options, const EncoderDecoderState& state,
                              const TensorView& d_y, const EncoderDecoderInputGradients& d_inputs,
                              const EncoderDecoderGradients& gradients) {
  check_rows(source, "encoder_decoder_backward", "source");
  Tensor d_memory(source.dtype(), source.shape());
  stack_backward(target, state.memory.view(), model.decoder, options.decoder, state.decoder, d_y,
                 {.x = d_inputs.target, .memory = d_memory.mutable_view()}, gradients.decoder);
  stack_backward(source, {}, model.encoder, options.encoder, state.encoder, d_memory.view(), {.x = d_inputs.source},
                 gradients.encoder);
}

}  // namespace qkv
