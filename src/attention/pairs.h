// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <type_traits>

#include "attention/problem.h"
#include "kernels/attention_kernels.h"
#include "qkv/support/checked.h"

namespace qkv {

// Operands of products are made of elements E: of T itself, or of pairs of bf16 where the instruction set multiplies
// those.

template <class T, class E>
inline constexpr bool kInPairs = !std::is_same_v<T, E>;

/// Inner elements in one E.
template <class T, class E>
inline constexpr int64_t kElements = kInPairs<T, E> ? 2 : 1;

/// The E of a row of `width` elements.
template <class T, class E>
constexpr int64_t width_in(int64_t width) {
  return ceil_divide(width, kElements<T, E>);
}

/// True when the products of the problem go in pairs of bf16, in every pass. A scale so large that what a pair flushes
/// to 0 counts keeps to f32.
inline bool uses_pairs(const Problem& problem) {
  return problem.dtype == DType::bf16 && kernels().bf16 != nullptr && std::fabs(problem.scale) <= 0x1p40;
}

template <class T>
void negate(T* values, int64_t count) {
  for (int64_t n = 0; n < count; ++n) values[n] = -values[n];
}
inline void negate(BFloat16Pair* pairs, int64_t count) {
  for (int64_t n = 0; n < count; ++n) pairs[n].bits ^= 0x80008000U;
}

/// Rows for the broadcast operand of a product, [rows, stride].
template <class T>
void pack_broadcast_rows(const StoredRows& rows, T* out, int64_t stride) {
  kernels().attention<T>().pack_rows(rows, out, stride, nullptr);
}
inline void pack_broadcast_rows(const StoredRows& rows, BFloat16Pair* out, int64_t stride) {
  kernels().bf16->pack_pair_rows(rows, out, stride);
}

/// Rows to panels, for a product whose lanes run along them.
template <class T>
void pack_panels(const StoredRows& rows, T* out) {
  kernels().attention<T>().pack_panels(rows, out);
}
inline void pack_panels(const StoredRows& rows, BFloat16Pair* out) { kernels().bf16->pack_pair_panels(rows, out); }

/// Rows for the streamed operand of a product whose inner dimension they are, finite, with what was taken out.
template <class T>
NonFiniteRows pack_streamed_rows(const StoredRows& rows, T* out, int64_t stride, int64_t* found) {
  return {rows, found, kernels().attention<T>().pack_rows(rows, out, stride, found)};
}
inline NonFiniteRows pack_streamed_rows(const StoredRows& rows, BFloat16Pair* out, int64_t stride, int64_t* found) {
  return {rows, found, kernels().bf16->pack_row_pairs(rows, out, stride, found)};
}

/// True when rows lie in memory as they would be packed with this stride.
template <class T>
bool lies_as_packed(const StoredRows& rows, int64_t stride) {
  return rows.dtype == DTypeOf<T>::value && rows.column_stride == 1 && rows.row_stride == stride &&
         rows.columns == stride;
}

/// Queries, negated under a negative scale: kernels know none.
template <class T, class E>
void pack_queries(const Problem& problem, const StoredRows& rows, E* out) {
  const int64_t width = width_in<T, E>(problem.D);
  pack_broadcast_rows(rows, out, width);
  if (problem.scale < 0) negate(out, rows.rows * width);
}

/// The kernels whose operands are of E.
template <class T, class E>
const auto& kernels_of() {
  if constexpr (kInPairs<T, E>) {
    return *kernels().bf16;
  } else {
    return kernels().attention<T>();
  }
}

}  // namespace qkv
