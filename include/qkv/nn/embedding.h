// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/tensor/view.h"

namespace qkv {

struct EmbeddingOptions {
  double scale = 1;          ///< of the looked-up rows, in the compute type
  TensorView residual = {};  ///< [N, width], added: positions, token types; y itself for y += rows
  int threads = 0;
};

/// y[n, :] = scale table[ids[n], :] + residual[n, :]. table [vocabulary, width], ids [N] i64 or i32, y [N, width];
/// table, residual and y are f32, bf16 or f16, each its own, or all f64; any strides. An id outside the table throws
/// Error that names it. Learned positions are the same call with positions for ids.
void embedding_forward(const TensorView& table, const TensorView& ids, const MutableTensorView& y,
                       const EmbeddingOptions& options = {});

/// d_table[ids[n], :] += scale d_y[n, :], the rows of one id summed in order from zero in the compute type, then added.
/// The gradient of the residual is d_y. Extra memory: two integers a row.
void embedding_backward(const TensorView& ids, const TensorView& d_y, const MutableTensorView& d_table,
                        const EmbeddingOptions& options = {});

}  // namespace qkv
