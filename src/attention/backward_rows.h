// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/backward_plan.h"
#include "attention/check.h"
#include "support/aligned.h"

namespace qkv {

/// What every tile of a backward pass reads: upstream dO and, per row (contiguous rows), m, 1/l and delta.
///
/// delta_i = sum_j a_ij dP_ij - dLSE_i. The sum equals dO_i . out_i up to the rounding of dP and out. A row whose keys
/// lie in one key block gets what that lacks from its tile, of the very dP it is subtracted from. Which of the two is a
/// property of the row. With `anew` the others get it in a sweep of their own (backward_delta.h).
template <class T>
struct BackwardRows {
  Operand d_out;
  AlignedArray<T> m;
  AlignedArray<T> inverse_l;          ///< 0 for an empty row
  AlignedArray<T> inverse_l_low;      ///< 1/l - inverse_l
  AlignedArray<T> sink_weight;        ///< exp(sink - m) / l; 0 without a sink
  AlignedArray<int64_t> whole_block;  ///< the one key block with every key the row may see; -1: there are several
  AlignedArray<T> delta;              ///< of whole rows, and of all with `anew`: -dLSE
  AlignedArray<T> delta_low;          ///< what rounding took from delta
  AlignedArray<T> estimate;           ///< where delta is -dLSE: dO . out
  AlignedArray<T> final_delta;        ///< of whole rows complete once their tile has run
};

template <class T>
BackwardRows<T> backward_rows(const Problem& problem, const StateOperands& state, const Operand& d_out,
                              const Operand& d_lse, bool anew = false);

/// dSink_h = -sum_i exp(sink_h - m_i) / l_i * delta_i, in f64.
template <class T>
void store_sink_gradients(const Problem& problem, const BackwardRows<T>& rows, const MutableTensorView& d_sinks);

}  // namespace qkv
