// SPDX-License-Identifier: Apache-2.0
#include "qkv/nn/linear.h"

#include "nn/rows.h"

namespace qkv {

void linear_forward(const TensorView& x, const Linear& linear, const MutableTensorView& y,
                    const LinearOptions& options) {
  check_rows(x, "linear", "x");
  outputs_of(linear, "linear", "the layer");
  const MatmulOptions matmul_options = {.bias = linear.bias,
                                        .activation = options.activation,
                                        .gate = options.gate,
                                        .residual = options.residual,
                                        .threads = options.threads};
  if (linear.packed) return matmul(x, linear.packed, y, matmul_options);
  matmul(x, transposed(linear.weight), y, matmul_options);
}

void linear_backward(const TensorView& x, const Linear& linear, const TensorView& d_y, const MutableTensorView& d_x,
                     const LinearGradients& gradients, const LinearBackwardOptions& options) {
  check_rows(d_y, "linear_backward", "d_y");
  if (d_x) {
    require(static_cast<bool>(linear.weight), "linear_backward: the gradient of x needs the weight, not packed alone");
    matmul(d_y, linear.weight, d_x, {.residual = options.residual, .threads = options.threads});
  }
  if (gradients.weight) {
    check_rows(x, "linear_backward", "x");
    matmul(transposed(d_y), x, gradients.weight, {.residual = gradients.weight, .threads = options.threads});
  }
  if (gradients.bias) column_sums(d_y, gradients.bias, gradients.bias, options.threads);
}

void pack(Linear& linear, int threads) {
  if (linear.weight) linear.packed = PackedMatrix(transposed(linear.weight), threads);
}

void pack(FeedForward& feed_forward, int threads) {
  for (Linear* linear : {&feed_forward.up, &feed_forward.gate, &feed_forward.down}) pack(*linear, threads);
}

void pack(MultiHeadAttention& attention, int threads) {
  for (Linear* linear : {&attention.q, &attention.k, &attention.v, &attention.out}) pack(*linear, threads);
}

void pack(Block& block, int threads) {
  pack(block.attention, threads);
  pack(block.cross, threads);
  pack(block.feed_forward, threads);
}

void pack(Stack& stack, int threads) {
  for (Block& block : stack.blocks) pack(block, threads);
}

}  // namespace qkv
