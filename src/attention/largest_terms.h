// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"
#include "attention/reference_head.h"

namespace qkv {

/// Raises `largest` to the size of a term, unless that is NaN or infinite.
void raise(double& largest, double term);

/// Largest term of s_ij, at least 1. Its rounding moves a_ij by that much, relatively.
double largest_score_term(const Problem& problem, const definition::HeadInputs<double>& inputs,
                          const definition::Row<double>& row, int64_t b, int64_t h, int64_t i, int64_t j);

/// The largest term that enters the sums of each result, the errors of scores and weights carried along to first order:
/// a term t there means that rounding alone may cost an ulp of t.
struct LargestTerms {
  double out = 0, lse = 0;
  double d_q = 0, d_k = 0, d_v = 0, d_bias = 0, d_slopes = 0, d_table = 0, d_sinks = 0, d_scale = 0;
};

/// d_out and d_lse may be absent; terms of gradients are then 0.
LargestTerms largest_terms(const Problem& problem, const Operand& d_out, const Operand& d_lse);

}  // namespace qkv
