// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/check_derivatives.h"

namespace qkv {

/// The largest term that enters the sums of forward mode and second order, in the sense of LargestTerms.
struct LargestDerivativeTerms {
  double t_out = 0, t_lse = 0;
  double g_q = 0, g_k = 0, g_v = 0, g_bias = 0;
  double g_slopes = 0, g_sinks = 0;
};

/// Without d_out those of forward mode alone; the gradients of d_out and d_lse have the terms of t_out and t_lse, that
/// of a table those of a bias.
LargestDerivativeTerms largest_derivative_terms(const Problem& problem, const TangentOperands& tangents,
                                                const Operand& d_out, const Operand& d_lse = {});

}  // namespace qkv
