// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/backward_plan.h"
#include "support/aligned.h"

namespace qkv {

/// The state of a forward pass as operands: m and l over (-, -, row number, -), out over (b, h, row, column).
struct StateOperands {
  Operand row_max;
  Operand row_sum;
  Operand out;
};

/// What every tile of a backward pass reads: upstream dO and, per row (contiguous rows), m, 1/l and delta.
template <class T>
struct BackwardRows {
  Operand d_out;
  AlignedArray<T> m;
  AlignedArray<T> inverse_l;  ///< 0 for an empty row
  AlignedArray<T> delta;      ///< dO . out - dLSE, from the unrounded out
};

template <class T>
BackwardRows<T> backward_rows(const Problem& problem, const StateOperands& state, const Operand& d_out,
                              const Operand& d_lse);

/// dSink_h = -sum_i exp(sink_h - m_i) / l_i * delta_i, in f64.
template <class T>
void store_sink_gradients(const Problem& problem, const BackwardRows<T>& rows, const MutableTensorView& d_sinks);

}  // namespace qkv
