// SPDX-License-Identifier: Apache-2.0
#include "qkv/attention/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/allowance.h"
#include "attention/check.h"
#include "attention/largest_terms.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The sizes of the allowance.
class Allowance {
 public:
  Allowance(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
            const TensorView& d_out, const TensorView& d_lse) {
    const Problem problem = check_problem(q, k, v, options);
    Operand d_out_rows, d_lse_rows;
    if (d_out) d_out_rows = check_like(problem, d_out, "d_out", Rows::queries, problem.H, problem.Dv, q.rank());
    if (d_lse) d_lse_rows = check_per_row(problem, d_lse, "d_lse", q.rank());
    terms = largest_terms(problem, d_out_rows, d_lse_rows);
    stored = problem.dtype;
    compute = problem.is_f64() ? DType::f64 : DType::f32;
    rows = static_cast<double>(problem.packed ? problem.Tq : problem.B * problem.Tq);
    row_pairs = rows * static_cast<double>(problem.Tk);
    pairs = row_pairs * static_cast<double>(problem.H);
    // Batch entries that are one another's copies round alike.
    const bool copies = q.rank() == 4 && q.stride(0) == 0 && k.stride(0) == 0 && v.stride(0) == 0;
    if (copies) batch_copies = std::max(1.0, static_cast<double>(problem.B));
  }

  /// See rounding_allowance.
  double of(const Tensor& result, const Tensor& reference, double term, DType unit_of, double summed) const {
    return rounding_allowance(result, reference, term, unit_of, summed * batch_copies);
  }

  LargestTerms terms;
  DType stored = DType::f32, compute = DType::f32;
  double rows = 0;       ///< queries of one head, over the batch
  double row_pairs = 0;  ///< pairs of a query and a key of one head, over the batch
  double pairs = 0;      ///< of all heads
  double batch_copies = 1;
};

}  // namespace

double AccuracyComparison::ratio() const {
  if (error == 0) return 0;
  return plain_error == 0 ? kInfinity : error / plain_error;
}

std::string AccuracyComparison::text() const {
  return concat(name, ": error ", error, ", plain formula's ", plain_error, ", bound ", factor, " x that + ",
                allowance);
}

double largest_error(const TensorView& result, const TensorView& reference) {
  require(result.shape() == reference.shape(), "results of shapes ", result.shape(), " and ", reference.shape());
  double largest = 0;
  const int64_t count = result.elements();
  for (int64_t i = 0; i < count; ++i) {
    const double a = element_of(result, i);
    double b = element_of(reference, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (std::isinf(a)) {  // what the type would store; within an ulp of its end either is right
      double stored = 0;
      store_from_double(result.dtype(), &stored, b * (1 + 2 * unit(result.dtype())));
      b = load_as_double(result.dtype(), &stored);
      if (a == b) continue;
    }
    if (!std::isfinite(a) || !std::isfinite(b)) return kInfinity;
    largest = std::max(largest, std::fabs(a - b));
  }
  return largest;
}

std::vector<AccuracyComparison> attention_accuracy(const TensorView& q, const TensorView& k, const TensorView& v,
                                                   const AttentionOptions& options, const AttentionReference& results,
                                                   const TensorView& d_out, const TensorView& d_lse) {
  const AttentionReference reference = attention_reference(q, k, v, options, Arithmetic::reference, d_out, d_lse);
  const AttentionReference plain = attention_reference(q, k, v, options, Arithmetic::plain, d_out, d_lse);
  const Allowance allowance(q, k, v, options, d_out, d_lse);
  const LargestTerms& terms = allowance.terms;
  std::vector<AccuracyComparison> comparisons;
  // Weights and dS may be rounded to the storage type where they enter `out`, d_q, d_k and d_v; nothing else is.
  const auto add = [&](const char* name, Tensor AttentionReference::*member, double term, DType unit_of, double factor,
                       double summed = 1) {
    const Tensor& result = results.*member;
    if (!result) return;
    require(static_cast<bool>(reference.*member), "attention: ", name, " needs d_out to compare with, none came");
    comparisons.push_back({name, largest_error(result.view(), (reference.*member).view()),
                           largest_error((plain.*member).view(), (reference.*member).view()),
                           allowance.of(result, reference.*member, term, unit_of, summed), factor});
  };
  const DType stored = allowance.stored;
  const DType compute = allowance.compute;
  const double biases = results.d_bias ? static_cast<double>(results.d_bias.view().elements()) : 1;
  add("out", &AttentionReference::out, terms.out, stored, 2);
  add("lse", &AttentionReference::lse, terms.lse, compute, 2);
  add("d_q", &AttentionReference::d_q, terms.d_q, stored, 3);
  add("d_k", &AttentionReference::d_k, terms.d_k, stored, 3);
  add("d_v", &AttentionReference::d_v, terms.d_v, stored, 3);
  add("d_bias", &AttentionReference::d_bias, terms.d_bias, compute, 3, allowance.pairs / std::max(biases, 1.0));
  add("d_slopes", &AttentionReference::d_slopes, terms.d_slopes, compute, 3, allowance.row_pairs);
  add("d_table", &AttentionReference::d_table, terms.d_table, compute, 3, allowance.row_pairs);
  add("d_sinks", &AttentionReference::d_sinks, terms.d_sinks, compute, 3, allowance.rows);
  add("d_scale", &AttentionReference::d_scale, terms.d_scale, compute, 3, allowance.pairs);
  return comparisons;
}

}  // namespace qkv
