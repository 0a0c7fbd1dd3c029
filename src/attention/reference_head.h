// SPDX-License-Identifier: Apache-2.0
//
// One head of the definition, one row at a time, in plain loops: docs/semantics.md word for word. T is the
// arithmetic. Every sum runs in the order of its index; loops are nested so that the inner one runs along memory.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "attention/bias.h"
#include "attention/dropout.h"
#include "attention/mask.h"
#include "attention/problem.h"

namespace qkv::definition {

/// The one rounding that bf16 and f16 allow, of a weight or dS that enters a product: to the significant bits of the
/// storage type, at any exponent, so that nothing overflows or is flushed. f32 and f64 have none.
template <class T>
T round_factor(DType, T value) {
  return value;
}
template <>
inline float round_factor(DType storage, float value) {
  if (storage != DType::bf16 && storage != DType::f16) return value;
  const int dropped = storage == DType::bf16 ? 16 : 13;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t unit = uint32_t{1} << dropped;
  const uint32_t rounded = (bits + (unit / 2 - 1) + ((bits >> dropped) & 1)) & ~(unit - 1);
  const float result = std::bit_cast<float>(rounded);
  return std::isfinite(value) && std::isfinite(result) ? result : value;
}

/// Keys and values of one head, converted, by rows and by columns.
template <class T>
struct HeadInputs {
  std::vector<T> k, k_columns;   // [Tk, D], [D, Tk]
  std::vector<T> v, v_columns;   // [Tk, Dv], [Dv, Tk]
  std::vector<int64_t> buckets;  // of the distances from first_distance on, with a table
  int64_t first_distance = 0;

  HeadInputs(const Problem& problem, int64_t b, int64_t hkv);
};

/// What one row of the forward leaves behind. Arrays are indexed by key and valid at `visible` keys.
template <class T>
struct Row {
  std::vector<T> q;              // [D]
  std::vector<int64_t> visible;  // ascending
  std::vector<T> dot;            // q . k
  std::vector<T> tanh;           // of the soft-cap
  std::vector<T> weight;         // a, step 5
  std::vector<T> kept;           // r, step 6
  std::vector<T> out;            // [Dv]
  T m = 0, l = 0, lse = 0;
  T sink_weight = 0;  // exp(sink - m) / l

  explicit Row(const Problem& problem);
};

/// dO and dLSE of a row, and what it adds to.
template <class T>
struct RowGradient {
  std::vector<T> d_out;  // [Dv]
  T d_lse = 0;
  std::vector<T> d_p, d_s, d_c;  // by key
  std::vector<T> d_q;            // [D]

  explicit RowGradient(const Problem& problem);
};

/// Sums over the rows of the query heads that read one key/value head. dK still lacks its factor `scale`.
template <class T>
struct HeadGradients {
  std::vector<T> d_k, d_v;                  // [Tk, D], [Tk, Dv]
  std::vector<T> d_table;                   // [group, buckets]
  std::vector<T> d_slope, d_sink, d_scale;  // [group]

  HeadGradients(const Problem& problem, const Sequence& sequence);
};

/// Sums of dS over the axes the bias broadcasts; row-major with the shape of the bias.
template <class T>
struct BiasGradient {
  std::vector<T> sum;
  std::array<int64_t, 4> stride{};

  T& at(int64_t b, int64_t h, int64_t i, int64_t j) {
    return sum[static_cast<size_t>(b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3])];
  }
};

/// From query i of head (b, h) to its output.
template <class T>
void forward_row(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i, Row<T>& row);

/// The gradients of the same row; `gradient.d_out` and `d_lse` are set. Fills gradient.d_q, adds to the rest.
template <class T>
void backward_row(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i,
                  const Row<T>& row, RowGradient<T>& gradient, HeadGradients<T>& sums, BiasGradient<T>& bias);

}  // namespace qkv::definition
