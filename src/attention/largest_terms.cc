// SPDX-License-Identifier: Apache-2.0
#include "attention/largest_terms.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/reference_head.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

using definition::HeadInputs;
using definition::Row;

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// Terms of one row, from the gradients of docs/semantics.md with every product taken alone.
class RowTerms {
 public:
  RowTerms(const Problem& problem, const Operand& d_out, const Operand& d_lse, LargestTerms& terms)
      : problem_(problem), d_out_(d_out), d_lse_(d_lse), terms_(terms), row_(problem), score_(index(problem.Tk)) {
    d_p_.resize(score_.size());
    d_out_row_.resize(index(problem.Dv));
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
    for (const int64_t j : row_.visible) score_[index(j)] = largest_score_term(problem_, inputs, row_, b, h, i, j);
    for (const int64_t j : row_.visible) add_forward(inputs, j);
    if (d_out_) add_backward(inputs, b, h, i, row_d_lse);
  }

 private:
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
    std::vector<double>& d_out = d_out_row_;
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
  std::vector<double> score_, d_p_, d_out_row_;
};

void raise_all(LargestTerms& largest, const LargestTerms& terms) {
  for (double LargestTerms::*member : {&LargestTerms::out, &LargestTerms::lse, &LargestTerms::d_q, &LargestTerms::d_k,
                                       &LargestTerms::d_v, &LargestTerms::d_bias, &LargestTerms::d_slopes,
                                       &LargestTerms::d_table, &LargestTerms::d_sinks, &LargestTerms::d_scale}) {
    raise(largest.*member, terms.*member);
  }
}

}  // namespace

void raise(double& largest, double term) {
  if (std::isfinite(term)) largest = std::max(largest, std::fabs(term));
}

double largest_score_term(const Problem& problem, const HeadInputs<double>& inputs, const Row<double>& row, int64_t b,
                          int64_t h, int64_t i, int64_t j) {
  double largest = 1;
  const double distance = std::fabs(static_cast<double>(i + problem.sequence(b).offset - j));
  for (int64_t d = 0; d < problem.D; ++d) {
    raise(largest, problem.scale * row.q[index(d)] * inputs.k[index(j * problem.D + d)]);
  }
  raise(largest, problem.scale * row.dot[index(j)]);
  if (problem.bias) raise(largest, load_as<double>(problem.bias.dtype, problem.bias.at(b, h, i, j)));
  if (problem.slopes) {
    raise(largest, load_as<double>(problem.slopes.dtype, problem.slopes.at(0, h, 0, 0)) * distance);
  }
  if (problem.table) {
    const int64_t bucket = relative_bucket(i + problem.sequence(b).offset - j, problem.table_buckets, problem.buckets);
    raise(largest, load_as<double>(problem.table.dtype, problem.table.at(0, h, 0, bucket)));
  }
  return largest;
}

LargestTerms largest_terms(const Problem& problem, const Operand& d_out, const Operand& d_lse) {
  const int64_t heads = problem.B * problem.Hkv;
  std::vector<LargestTerms> terms(index(heads));
  parallel_for(heads, problem.threads, [&](int64_t item, int) {
    const int64_t b = item / problem.Hkv;
    const int64_t hkv = item % problem.Hkv;
    const HeadInputs<double> inputs(problem, b, hkv);
    RowTerms row(problem, d_out, d_lse, terms[index(item)]);
    for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
      for (int64_t i = 0; i < problem.sequence(b).Tq; ++i) row.add(inputs, b, h, i);
    }
  });
  LargestTerms largest;
  for (const LargestTerms& head : terms) raise_all(largest, head);
  return largest;
}

}  // namespace qkv
