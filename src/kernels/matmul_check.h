// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention_kernels.h"
#include "qkv/kernels/matmul.h"

namespace qkv {

/// Floating dtype, sizes and strides whose bytes fit 62 bits, memory where there are elements.
void check_floating(const TensorView& view, const char* operation, const char* name);

/// The same for an operand of matmul, with this rank.
void check_matrix(const TensorView& view, const char* name, int rank);

/// The same elements in the same places.
bool is_same_view(const TensorView& x, const TensorView& y);

/// A rank-2 view, or a rank-1 view as one row, for kernels.
StoredRows stored_rows(const TensorView& view);

/// Checks a call, B already known as [b_rows, b_columns] of b_dtype (`b` absent when it is packed).
void check_matmul(const TensorView& a, const TensorView& b, const Dims& b_shape, DType b_dtype,
                  const MutableTensorView& c, const MatmulOptions& options);

}  // namespace qkv
