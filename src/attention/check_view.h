// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"

namespace qkv {

/// No size, offset or window side beyond this enters position arithmetic, so that sums of a few stay within 64 bits.
inline constexpr int64_t kLargestPosition = int64_t{1} << 60;

/// No row of q, k or v is wider, so that the bytes of a packed block of rows stay within 64 bits.
inline constexpr int64_t kLargestWidth = int64_t{1} << 48;

/// Present, sizes from 0 to kLargestPosition, elements and strides within 64 bits of bytes, memory where there are
/// elements, and aligned to its element.
void check_memory(const TensorView& view, const char* name);
/// check_memory, and exactly this shape.
void check_shape(const TensorView& view, const char* name, const Dims& shape);
/// `rank` axes or 4, innermost ones last; each is full or 1 where `broadcast` says so. `full` has four sizes.
void check_axes(const TensorView& view, const char* name, int rank, const std::array<int64_t, 4>& full,
                const std::array<bool, 4>& broadcast);

void check_dtype(const TensorView& view, const char* name, DType expected);
/// Either of two.
void check_dtype(const TensorView& view, const char* name, DType expected, DType other);

/// The view as an operand whose axis a walks the view's axis axes[a] (-1: none). Axes of size 1 get stride 0. An empty
/// view has a non-null data pointer that is never read.
Operand make_operand(const TensorView& view, const std::array<int, 4>& axes);
/// The axes of the view, aligned to the right: rank 2 is (row, column), rank 4 all.
Operand make_operand(const TensorView& view);

/// Element i of a rank-1 view of i32 or i64.
int64_t integer_at(const TensorView& view, int64_t i);

/// Product of sizes, times eight bytes, within 64 bits; a zero anywhere makes it 0.
int64_t checked_product(std::initializer_list<int64_t> sizes, const char* what);

}  // namespace qkv
