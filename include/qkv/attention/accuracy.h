// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "qkv/attention/reference.h"

namespace qkv {

/// One result beside the f64 reference and the plain formula: the accuracy promise of docs/numerics.md.
struct AccuracyComparison {
  std::string name;        ///< "out", "lse", "d_q", ...
  double error = 0;        ///< largest |result - reference|; infinite where one is NaN or infinite and the other not
  double plain_error = 0;  ///< the same of the plain formula
  double allowance = 0;    ///< a few units in the last place of the largest term of the sums that make the result
  double factor = 2;       ///< 2 for out and lse, 3 for gradients and tangents

  double bound() const { return factor * plain_error + allowance; }
  bool holds() const { return error <= bound(); }
  /// error / plain_error; 0 when there is no error, infinite when only the plain formula has none.
  double ratio() const;
  /// "out: error 1e-07, plain formula's 2e-07, bound 2 x that + 3e-08"
  std::string text() const;
};

/// Compares whatever `results` holds, in the dtypes and shapes the operation stores, row-major; absent tensors are
/// skipped. Gradients need the d_out, and d_lse if any, that they were taken with. Evaluates the definition three times
/// in plain loops: the reference, the plain formula, and its largest terms. Errors as attention_forward's.
std::vector<AccuracyComparison> attention_accuracy(const TensorView& q, const TensorView& k, const TensorView& v,
                                                   const AttentionOptions& options, const AttentionReference& results,
                                                   const TensorView& d_out = {}, const TensorView& d_lse = {});

/// The same of what attention_jvp gives, and of what attention_second_order gives.
std::vector<AccuracyComparison> attention_jvp_accuracy(const TensorView& q, const TensorView& k, const TensorView& v,
                                                       const AttentionOptions& options,
                                                       const AttentionTangents& tangents,
                                                       const AttentionJvpReference& results);
std::vector<AccuracyComparison> attention_second_order_accuracy(const TensorView& q, const TensorView& k,
                                                                const TensorView& v, const AttentionOptions& options,
                                                                const AttentionUpstream& upstream,
                                                                const AttentionCotangents& cotangents,
                                                                const AttentionSecondReference& results);

/// Largest |a - b| over all elements of two tensors of one shape; NaN equals NaN and an infinity its like, else they
/// are infinitely far apart. A reference beyond the range of the result's dtype counts as the infinity the type stores.
double largest_error(const TensorView& result, const TensorView& reference);

}  // namespace qkv
