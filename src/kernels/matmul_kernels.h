// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "qkv/kernels/matmul.h"

namespace qkv {

// What matmul asks of one instruction set. T is the compute type, float or double. Pointers, sizes and strides (in
// elements); scratch belongs to the caller.

/// What becomes of the sum of a call: it is set, added to the sums there, or goes on from them as if the steps of this
/// call had followed those of an earlier one.
enum class MatmulInto : uint8_t { set, add, go_on };

/// sums[r, :] = sum over t < steps of a[r a_row + t a_step] * b[t b_step + :], in order of t. Where operands are pairs
/// of bf16 they are passed as the T whose bits they are.
template <class T>
struct MatmulProduct {
  const T* a;
  int64_t a_row;
  int64_t a_step;
  const T* b;
  int64_t b_step;
  T* sums;
  int64_t sums_row;
  int64_t steps;
  int64_t rows;
  int64_t columns;  ///< written in whole vectors
  MatmulInto into;
};

/// No item of work is wider.
inline constexpr int64_t kMatmulColumns = 256;

/// C = activation(sums + bias) * gate + residual for a rectangle of C.
template <class T>
struct MatmulFinish {
  T* sums;  ///< [rows, sums_row], 64-byte aligned, whole vectors; overwritten
  int64_t sums_row;
  int64_t rows;
  int64_t columns;  ///< at most kMatmulColumns
  const T* bias;    ///< [columns] in whole vectors; null: none
  Activation activation;
  StoredRows gate;  ///< data null: none
  StoredRows residual;
  void* c;
  DType c_dtype;
  int64_t c_row;
  int64_t c_column;
};

template <class T>
struct MatmulKernels {
  int64_t lanes;        ///< of one vector
  int64_t panel_width;  ///< columns of a packed panel

  /// out[r, c] = source[r, c], widened; columns up to `padded`, a multiple of the lanes, are 0.
  void (*stage)(const StoredRows& source, T* out, int64_t out_stride, int64_t padded);
  void (*product)(const MatmulProduct<T>& product);
  void (*finish)(const MatmulFinish<T>& finish);
  /// scores[r, c] = the sum over t < D of q[r, t] * columns[c, t], in order of t: `columns` holds at most `lanes`
  /// columns of B as rows, a whole vector of sums is written. Of the product q, q_stride, rows, D, scores and
  /// scores_stride are used.
  void (*product_of_columns)(const ScoreTile<T>& product, const StoredRows& columns);

  // Of f32 only: a bf16 matrix B in pairs of rows.
  /// out[p, c] = the pair of source[2 p, c] and source[2 p + 1, c]; padded as `stage` does, an odd last row is 0.
  void (*stage_pairs)(const StoredRows& source, T* out, int64_t out_stride, int64_t padded) = nullptr;
  /// b is pairs, steps count them; a is T, two of its steps a pair.
  void (*product_of_pairs)(const MatmulProduct<T>& product) = nullptr;
};

/// What an instruction set with bf16 dot products has beside that.
struct MatmulPairKernels {
  /// Rows to pairs along the columns, each padded with zeros to `out_stride` pairs.
  void (*stage_pair_rows)(const StoredRows& source, BFloat16Pair* out, int64_t out_stride);
  /// a and b are pairs, steps count them.
  void (*product)(const MatmulProduct<float>& product);
  /// As MatmulKernels has it; q and D are pairs.
  void (*product_of_columns)(const ScoreTile<float, BFloat16Pair>& product, const StoredRows& columns);
};

}  // namespace qkv
