// SPDX-License-Identifier: Apache-2.0
//
// Promise 3 as a function: results against the f64 reference, beside the error of the plain formula.
//
//   AttentionReference ours = ...;                        // results of the library, as tensors
//   for (const Comparison& c : compare(problem, ours)) EXPECT_TRUE(c.holds()) << c.text();
#pragma once

#include <string>
#include <vector>

#include "problems.h"
#include "qkv/attention/reference.h"

namespace qkv::test {

/// The largest term that enters the sums of each result, the errors of scores and weights carried along to first order:
/// a term t there means that rounding alone may cost an ulp of t.
struct LargestTerms {
  double out = 0, lse = 0;
  double d_q = 0, d_k = 0, d_v = 0, d_bias = 0, d_slopes = 0, d_table = 0, d_sinks = 0, d_scale = 0;
};
LargestTerms largest_terms(const TestProblem& problem);

/// One result against the reference.
struct Comparison {
  std::string name;        ///< "out", "d_q", ...
  double error = 0;        ///< largest |result - reference|; infinite where one is NaN or infinite and the other not
  double plain_error = 0;  ///< the same of the plain formula
  double allowance = 0;    ///< a few ulps of the largest term
  double factor = 2;       ///< 2 for out and lse, 3 for gradients

  double bound() const { return factor * plain_error + allowance; }
  bool holds() const { return error <= bound(); }
  /// error / plain_error; 0 when there is no error, infinite when only the plain formula has none.
  double ratio() const;
  std::string text() const;
};

/// Compares whatever tensors `results` holds (absent ones are skipped). Gradients need problem.d_out.
std::vector<Comparison> compare(const TestProblem& problem, const AttentionReference& results);

/// Largest |a - b| over all elements; NaN equals NaN and an infinity its like, else they are infinitely far apart. With
/// a result dtype, a reference beyond that type's range counts as the infinity that the type stores.
double largest_error(const TensorView& result, const TensorView& reference);

}  // namespace qkv::test
