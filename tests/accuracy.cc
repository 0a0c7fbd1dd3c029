// SPDX-License-Identifier: Apache-2.0
#include "accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/check.h"
#include "attention/reference_head.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

using definition::HeadInputs;
using definition::Row;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// "A few units in the last place".
constexpr double kUlps = 4;

size_t index(int64_t i) { return static_cast<size_t>(i); }

void raise(double& largest, double term) {
  if (std::isfinite(term)) largest = std::max(largest, std::fabs(term));
}

double unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    default: return 0x1p-23;
  }
}

/// Smallest distance between numbers of a storage type: what lies below it is rounded to it or to 0.
double smallest(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1074;
    case DType::bf16: return 0x1p-133;
    case DType::f16: return 0x1p-24;
    default: return 0x1p-149;
  }
}

/// Terms of one row, from the formulas of SEMANTICS section 5 with every product taken alone.
class RowTerms {
 public:
  RowTerms(const Problem& problem, const Operand& d_out, const Operand& d_lse, LargestTerms& terms)
      : problem_(problem), d_out_(d_out), d_lse_(d_lse), terms_(terms), row_(problem), score_(index(problem.Tk)) {
    d_p_.resize(score_.size());
  }

  void add(const HeadInputs<double>& inputs, int64_t b, int64_t h, int64_t i) {
    definition::forward_row(problem_, inputs, b, h, i, row_);
    raise(terms_.lse, row_.m);
    raise(terms_.lse, row_.lse);
    double row_d_lse = 0;
    if (d_lse_) row_d_lse = load_as<double>(d_lse_.dtype, d_lse_.at(b, h, problem_.sequence(b).q_begin + i, 0));
    if (row_.visible.empty()) {
      if (problem_.sinks) raise(terms_.d_sinks, row_d_lse);
      return;
    }
    for (const int64_t j : row_.visible) score_[index(j)] = largest_score_term(inputs, b, h, i, j);
    for (const int64_t j : row_.visible) add_forward(inputs, j);
    if (d_out_) add_backward(inputs, b, h, i, row_d_lse);
  }

 private:
  /// Largest term of s_ij. Its rounding moves a_ij by that much, relatively.
  double largest_score_term(const HeadInputs<double>& inputs, int64_t b, int64_t h, int64_t i, int64_t j) const {
    double largest = 1;
    const double distance = std::fabs(static_cast<double>(i + problem_.sequence(b).offset - j));
    for (int64_t d = 0; d < problem_.D; ++d) {
      raise(largest, problem_.scale * row_.q[index(d)] * inputs.k[index(j * problem_.D + d)]);
    }
    raise(largest, problem_.scale * row_.dot[index(j)]);
    if (problem_.bias) raise(largest, load_as<double>(problem_.bias.dtype, problem_.bias.at(b, h, i, j)));
    if (problem_.slopes) {
      raise(largest, load_as<double>(problem_.slopes.dtype, problem_.slopes.at(0, h, 0, 0)) * distance);
    }
    if (problem_.table) {
      const int64_t bucket =
          relative_bucket(i + problem_.sequence(b).offset - j, problem_.table_buckets, problem_.buckets);
      raise(largest, load_as<double>(problem_.table.dtype, problem_.table.at(0, h, 0, bucket)));
    }
    return largest;
  }

  void add_forward(const HeadInputs<double>& inputs, int64_t j) {
    raise(terms_.lse, row_.weight[index(j)] * score_[index(j)]);
    const double weight = row_.kept[index(j)] * row_.weight[index(j)];
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      const double v = inputs.v[index(j * problem_.Dv + c)];
      raise(terms_.out, weight * v);
      raise(terms_.out, row_.weight[index(j)] * score_[index(j)] * (row_.kept[index(j)] * v - row_.out[index(c)]));
    }
  }

  void add_backward(const HeadInputs<double>& inputs, int64_t b, int64_t h, int64_t i, double d_lse) {
    const int64_t at = problem_.sequence(b).q_begin + i;
    std::vector<double> d_out(index(problem_.Dv));
    for (int64_t c = 0; c < problem_.Dv; ++c) d_out[index(c)] = load_as<double>(problem_.dtype, d_out_.at(b, h, at, c));
    double largest_d_p = 0;  // of a term of some dP_j, times its weight
    double largest_d_s = 0;  // of a dS_j, times what moves its weight
    double delta = -d_lse;
    for (const int64_t j : row_.visible) {
      double sum = 0;
      double term = 0;
      for (int64_t c = 0; c < problem_.Dv; ++c) {
        const double product = row_.kept[index(j)] * d_out[index(c)] * inputs.v[index(j * problem_.Dv + c)];
        sum += product;
        raise(term, product);
      }
      raise(term, sum);
      d_p_[index(j)] = sum;
      delta += row_.weight[index(j)] * sum;
      raise(largest_d_p, row_.weight[index(j)] * term);
    }
    raise(largest_d_p, d_lse);
    for (const int64_t j : row_.visible) {
      raise(largest_d_s, row_.weight[index(j)] * (d_p_[index(j)] - delta) * score_[index(j)]);
    }
    raise(terms_.d_sinks, row_.sink_weight * largest_d_p);
    raise(terms_.d_sinks, row_.sink_weight * delta * largest_score());
    raise(terms_.d_sinks, row_.sink_weight * largest_d_s);
    for (const int64_t j : row_.visible) {
      const double weight = row_.weight[index(j)];
      double d_s = std::max(weight * largest_d_p, weight * largest_d_s);
      raise(d_s, weight * (d_p_[index(j)] - delta) * score_[index(j)]);
      for (int64_t c = 0; c < problem_.Dv; ++c) {
        const double product = row_.kept[index(j)] * d_out[index(c)] * inputs.v[index(j * problem_.Dv + c)];
        raise(d_s, weight * product);
      }
      add_products(inputs, b, i, j, d_s);
      for (int64_t c = 0; c < problem_.Dv; ++c) {
        raise(terms_.d_v, row_.kept[index(j)] * weight * score_[index(j)] * d_out[index(c)]);
      }
    }
  }

  double largest_score() const {
    double largest = 1;
    for (const int64_t j : row_.visible) raise(largest, score_[index(j)]);
    return largest;
  }

  /// What a dS_ij with a term of this size brings into each sum.
  void add_products(const HeadInputs<double>& inputs, int64_t b, int64_t i, int64_t j, double d_s) {
    raise(terms_.d_bias, d_s);
    raise(terms_.d_table, d_s);
    raise(terms_.d_slopes, d_s * static_cast<double>(i + problem_.sequence(b).offset - j));
    raise(terms_.d_scale, d_s * row_.dot[index(j)]);
    for (int64_t d = 0; d < problem_.D; ++d) {
      const double q = row_.q[index(d)];
      const double k = inputs.k[index(j * problem_.D + d)];
      raise(terms_.d_q, problem_.scale * d_s * k);
      raise(terms_.d_k, problem_.scale * d_s * q);
      raise(terms_.d_scale, d_s * q * k);
    }
  }

  const Problem& problem_;
  const Operand& d_out_;
  const Operand& d_lse_;
  LargestTerms& terms_;
  Row<double> row_;
  std::vector<double> score_, d_p_;
};

}  // namespace

LargestTerms largest_terms(const TestProblem& test) {
  const Problem problem = check_problem(test.q, test.k, test.v, test.options);
  const Operand d_out = check_like(problem, test.d_out, "d_out", Rows::queries, problem.H, problem.Dv, test.q.rank());
  Operand d_lse;
  if (test.d_lse) d_lse = check_per_row(problem, test.d_lse, "d_lse", test.q.rank());
  LargestTerms terms;
  for (int64_t b = 0; b < problem.B; ++b) {
    for (int64_t hkv = 0; hkv < problem.Hkv; ++hkv) {
      const HeadInputs<double> inputs(problem, b, hkv);
      RowTerms row(problem, d_out, d_lse, terms);
      for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
        for (int64_t i = 0; i < problem.sequence(b).Tq; ++i) row.add(inputs, b, h, i);
      }
    }
  }
  return terms;
}

double Comparison::ratio() const {
  if (error == 0) return 0;
  return plain_error == 0 ? kInfinity : error / plain_error;
}

std::string Comparison::text() const {
  return concat(name, ": error ", error, ", plain formula's ", plain_error, ", bound ", factor, " x that + ",
                allowance);
}

double largest_error(const TensorView& result, const TensorView& reference) {
  require(result.shape() == reference.shape(), "results of shapes ", to_string(result.shape()), " and ",
          to_string(reference.shape()));
  double largest = 0;
  const int64_t count = result.elements();
  for (int64_t i = 0; i < count; ++i) {
    const double a = element(result, i);
    double b = element(reference, i);
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

std::vector<Comparison> compare(const TestProblem& problem, const AttentionReference& results) {
  const auto evaluate = [&](Arithmetic arithmetic) {
    return attention_reference(problem.q, problem.k, problem.v, problem.options, arithmetic,
                               results.d_q || results.d_scale ? problem.d_out : TensorView(),
                               results.d_q || results.d_scale ? problem.d_lse : TensorView());
  };
  const AttentionReference reference = evaluate(Arithmetic::reference);
  const AttentionReference plain = evaluate(Arithmetic::plain);
  const LargestTerms terms = largest_terms(problem);
  std::vector<Comparison> comparisons;
  const DType compute = problem.lse_dtype();
  // Weights and dS may be rounded to the storage type where they enter `out`, d_q, d_k and d_v; nothing else is.
  // `summed`: how many terms one element sums over; independent roundings of n terms add up as sqrt(n).
  const auto add = [&](const char* name, Tensor AttentionReference::*member, double term, DType unit_of, double factor,
                       double summed = 1) {
    const Tensor& result = results.*member;
    if (!result) return;
    // Batch entries that are one another's copies round alike.
    if (problem.spec.layout == Layout::expanded) summed *= static_cast<double>(problem.spec.B);
    term *= std::sqrt(std::max(summed, 1.0));
    const double ulp = std::max(unit(unit_of), unit(result.dtype()));
    comparisons.push_back({name, largest_error(result.view(), (reference.*member).view()),
                           largest_error((plain.*member).view(), (reference.*member).view()),
                           kUlps * std::max({ulp * term, smallest(unit_of), smallest(result.dtype())}), factor});
  };
  add("out", &AttentionReference::out, terms.out, problem.spec.dtype, 2);
  add("lse", &AttentionReference::lse, terms.lse, compute, 2);
  add("d_q", &AttentionReference::d_q, terms.d_q, problem.spec.dtype, 3);
  add("d_k", &AttentionReference::d_k, terms.d_k, problem.spec.dtype, 3);
  add("d_v", &AttentionReference::d_v, terms.d_v, problem.spec.dtype, 3);
  const double pairs = static_cast<double>(problem.lse_shape().rank() == 0 ? 1 : element_count(problem.lse_shape())) *
                       static_cast<double>(problem.spec.Tk);
  const double rows = static_cast<double>(problem.spec.B * problem.spec.Tq);
  const double elements = results.d_bias ? static_cast<double>(results.d_bias.view().elements()) : 1;
  add("d_bias", &AttentionReference::d_bias, terms.d_bias, compute, 3, pairs / std::max(elements, 1.0));
  add("d_slopes", &AttentionReference::d_slopes, terms.d_slopes, compute, 3,
      rows * static_cast<double>(problem.spec.Tk));
  add("d_table", &AttentionReference::d_table, terms.d_table, compute, 3, rows * static_cast<double>(problem.spec.Tk));
  add("d_sinks", &AttentionReference::d_sinks, terms.d_sinks, compute, 3, rows);
  add("d_scale", &AttentionReference::d_scale, terms.d_scale, compute, 3, pairs);
  return comparisons;
}

}  // namespace qkv::test
