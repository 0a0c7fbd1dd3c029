// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "qkv/nn/block.h"

namespace qkv {

/// Blocks one after another, then a norm where there is one: an encoder without a memory, a decoder with causal
/// self-attention, the decoder of an encoder-decoder with a memory.
struct StackOptions {
  std::vector<BlockOptions> blocks = {};            ///< one for each block, or one for all
  std::optional<NormalizeOptions> final_norm = {};  ///< its residual must be absent
};

/// What the backward needs: a state a block and, between them, one array [N, width].
struct StackState {
  std::vector<BlockState> blocks;
  std::vector<Tensor> inputs;  ///< of blocks 1 ... and of the final norm; block 0 reads the caller's x
  NormalizeState final_norm;
};

/// y [N, width] = final_norm(block(... block(x))). With one set of options for all blocks, dropout seeds are mixed with
/// the block's number. y may be x itself where no state is kept. No block and no final norm: a copy.
void stack_forward(const TensorView& x, const TensorView& memory, const Stack& stack, const StackOptions& options,
                   const MutableTensorView& y, StackState* state = nullptr);

/// d_inputs.x is overwritten, d_inputs.memory and the gradients of parameters are added to.
void stack_backward(const TensorView& x, const TensorView& memory, const Stack& stack, const StackOptions& options,
                    const StackState& state, const TensorView& d_y, const BlockInputGradients& d_inputs,
                    const StackGradients& gradients);

/// stack_forward of the last rows of sequences whose earlier rows are in the caches, one BlockCache a block.
void stack_cached(const TensorView& x, const Stack& stack, const StackOptions& options,
                  std::span<const BlockCache> caches, const MutableTensorView& y);

/// Encoder and decoder. The memory that the decoder attends to is the encoder's output; what is padding there is
/// excluded by the decoder's cross options: key_starts of packed sequences, or key_lengths.
struct EncoderDecoder {
  Stack encoder = {};
  Stack decoder = {};
};
struct EncoderDecoderGradients {
  StackGradients encoder = {};
  StackGradients decoder = {};
};
struct EncoderDecoderOptions {
  StackOptions encoder = {};
  StackOptions decoder = {};
};
struct EncoderDecoderState {
  Tensor memory;  ///< [M, width]
  StackState encoder;
  StackState decoder;
};
/// y [N, width] from embedded source rows [M, width] and target rows [N, width].
void encoder_decoder_forward(const TensorView& source, const TensorView& target, const EncoderDecoder& model,
                             const EncoderDecoderOptions& options, const MutableTensorView& y,
                             EncoderDecoderState* state = nullptr);
struct EncoderDecoderInputGradients {
  MutableTensorView source = {};
  MutableTensorView target = {};
};
void encoder_decoder_backward(const TensorView& source, const TensorView& target, const EncoderDecoder& model,
                              const EncoderDecoderOptions& options, const EncoderDecoderState& state,
                              const TensorView& d_y, const EncoderDecoderInputGradients& d_inputs,
                              const EncoderDecoderGradients& gradients);

}  // namespace qkv
