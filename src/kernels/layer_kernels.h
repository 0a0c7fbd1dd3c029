// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/attention_kernels.h"
#include "qkv/kernels/activate.h"

namespace qkv {

// What layers ask of one instruction set beside products. T is the compute type, float or double. Operands are rows as
// they are stored; one whose data is null is not there. Outputs may be inputs, element by element. Scratch belongs to
// the caller; "whole vectors" are the columns rounded up to kLayerPadding.

inline constexpr int64_t kLayerPadding = 64;
/// Elements that the kernels without scratch take at a time.
inline constexpr int64_t kLayerColumns = 1024;

/// y = (x - mean) inverse weight + bias + residual, row by row.
template <class T>
struct NormalizeRows {
  StoredRows x;
  StoredRows residual;
  StoredRows y;     ///< written
  const T* weight;  ///< whole vectors, the offset included; null: 1
  const T* bias;    ///< null: 0
  bool subtracts_mean;
  T epsilon;
  T* mean;      ///< [rows], written where there is a mean and a pointer
  T* mean_low;  ///< [rows], what rounding took from it
  T* inverse;   ///< [rows], written where there is a pointer
  T* scratch;   ///< three rows in whole vectors
};

template <class T>
struct NormalizeRowsBackward {
  StoredRows x;
  StoredRows d_y;
  StoredRows residual;  ///< added to d_x
  StoredRows d_x;       ///< written; data null: not wanted
  const T* weight;
  const T* mean;  ///< null: rms
  const T* mean_low;
  const T* inverse;
  T* d_weight;  ///< whole vectors, added to; null: not wanted
  T* d_bias;
  T* scratch;  ///< four rows in whole vectors
};

/// y = activation(x) gate.
struct ActivateRows {
  StoredRows x;
  StoredRows gate;
  StoredRows y;
  Activation activation;
};

struct ActivateRowsBackward {
  StoredRows x;
  StoredRows gate;
  StoredRows d_y;
  StoredRows d_x;
  StoredRows d_gate;
  Activation activation;
};

/// y = scale x + residual.
template <class T>
struct AddRows {
  StoredRows x;
  StoredRows residual;
  StoredRows y;
  T scale;
};

/// y = r x + residual, decided by qkv/support/random.h for (seed, 0, 0, first_row + row) and the column.
struct DropoutRows {
  StoredRows x;
  StoredRows residual;
  StoredRows y;
  uint64_t seed;
  int64_t first_row;
  uint32_t threshold;
  double keep;  ///< 1 / (1 - p)
};

/// Pairs (a, b) -> (a cos - b sin, a sin + b cos) of some rows, in place.
template <class T>
struct RotateRows {
  StoredRows a;     ///< first elements of the pairs, read and written
  StoredRows b;     ///< second ones
  const T* cosine;  ///< [columns], for all rows
  const T* sine;
  bool backward;  ///< by minus the angle
};

template <class T>
struct LayerKernels {
  void (*normalize)(const NormalizeRows<T>& rows);
  void (*normalize_backward)(const NormalizeRowsBackward<T>& rows);
  void (*activate)(const ActivateRows& rows);
  void (*activate_backward)(const ActivateRowsBackward& rows);
  void (*add)(const AddRows<T>& rows);
  void (*dropout)(const DropoutRows& rows);
  void (*rotate)(const RotateRows<T>& rows);
  /// out[columns] in whole vectors: one stored row, widened.
  void (*widen)(const StoredRows& source, T* out, int64_t padded);
};

}  // namespace qkv
