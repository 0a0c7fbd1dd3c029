// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "attention/allowance.h"
#include "attention/check.h"
#include "attention/largest_derivative_terms.h"
#include "qkv/attention/accuracy.h"

namespace qkv {
namespace {

/// Promise 3 for gradients and tangents.
constexpr double kFactor = 3;

class Comparisons {
 public:
  /// `unit_of`: the coarsest type that terms are rounded to; `summed`: terms of one element of the result.
  void add(const char* name, const Tensor& result, const Tensor& reference, const Tensor& plain, double term,
           DType unit_of, double summed) {
    if (!result) return;
    all.push_back({name, largest_error(result.view(), reference.view()), largest_error(plain.view(), reference.view()),
                   rounding_allowance(result, reference, term, unit_of, summed), kFactor});
  }
  std::vector<AccuracyComparison> all;
};

DType compute_type(const Problem& problem) { return problem.is_f64() ? DType::f64 : DType::f32; }

}  // namespace

std::vector<AccuracyComparison> attention_jvp_accuracy(const TensorView& q, const TensorView& k, const TensorView& v,
                                                       const AttentionOptions& options,
                                                       const AttentionTangents& tangents,
                                                       const AttentionJvpReference& results) {
  const Problem problem = check_problem(q, k, v, options);
  const TangentOperands operands = check_tangents(problem, options, tangents, q.rank());
  const AttentionJvpReference exact = attention_jvp_reference(q, k, v, options, Arithmetic::reference, tangents);
  const AttentionJvpReference plain = attention_jvp_reference(q, k, v, options, Arithmetic::plain, tangents);
  const LargestDerivativeTerms terms = largest_derivative_terms(problem, operands, {});
  Comparisons comparisons;
  comparisons.add("t_out", results.t_out, exact.t_out, plain.t_out, terms.t_out, problem.dtype, 1);
  comparisons.add("t_lse", results.t_lse, exact.t_lse, plain.t_lse, terms.t_lse, compute_type(problem), 1);
  return comparisons.all;
}

std::vector<AccuracyComparison> attention_second_order_accuracy(const TensorView& q, const TensorView& k,
                                                                const TensorView& v, const AttentionOptions& options,
                                                                const AttentionUpstream& upstream,
                                                                const AttentionCotangents& cotangents,
                                                                const AttentionSecondReference& results) {
  const Problem problem = check_problem(q, k, v, options);
  const TangentOperands operands = check_cotangents(problem, options, cotangents, q.rank());
  const Operand d_out = check_like(problem, upstream.d_out, "d_out", Rows::queries, problem.H, problem.Dv, q.rank());
  const Operand d_lse = upstream.d_lse ? check_per_row(problem, upstream.d_lse, "d_lse", q.rank()) : Operand{};
  const AttentionSecondReference exact =
      attention_second_reference(q, k, v, options, Arithmetic::reference, upstream, cotangents);
  const AttentionSecondReference plain =
      attention_second_reference(q, k, v, options, Arithmetic::plain, upstream, cotangents);
  const LargestDerivativeTerms terms = largest_derivative_terms(problem, operands, d_out, d_lse);
  Comparisons comparisons;
  comparisons.add("g_q", results.g_q, exact.g_q, plain.g_q, terms.g_q, problem.dtype, 1);
  comparisons.add("g_k", results.g_k, exact.g_k, plain.g_k, terms.g_k, problem.dtype, 1);
  comparisons.add("g_v", results.g_v, exact.g_v, plain.g_v, terms.g_v, problem.dtype, 1);
  comparisons.add("g_d_out", results.g_d_out, exact.g_d_out, plain.g_d_out, terms.t_out, problem.dtype, 1);
  const DType compute = compute_type(problem);
  comparisons.add("g_d_lse", results.g_d_lse, exact.g_d_lse, plain.g_d_lse, terms.t_lse, compute, 1);
  const double rows = static_cast<double>(problem.packed ? problem.Tq : problem.B * problem.Tq);
  const double row_pairs = rows * static_cast<double>(problem.Tk);
  const double biases = results.g_bias ? static_cast<double>(results.g_bias.view().elements()) : 1;
  comparisons.add("g_bias", results.g_bias, exact.g_bias, plain.g_bias, terms.g_bias, compute,
                  row_pairs * static_cast<double>(problem.H) / std::max(biases, 1.0));
  comparisons.add("g_slopes", results.g_slopes, exact.g_slopes, plain.g_slopes, terms.g_slopes, compute, row_pairs);
  comparisons.add("g_table", results.g_table, exact.g_table, plain.g_table, terms.g_bias, compute, row_pairs);
  comparisons.add("g_sinks", results.g_sinks, exact.g_sinks, plain.g_sinks, terms.g_sinks, compute, rows);
  return comparisons.all;
}

}  // namespace qkv
