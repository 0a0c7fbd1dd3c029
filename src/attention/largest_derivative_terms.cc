// SPDX-License-Identifier: Apache-2.0
#include "attention/largest_derivative_terms.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/allowance.h"
#include "attention/largest_terms.h"
#include "attention/reference_derivatives.h"
#include "attention/sink.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

using definition::HeadInputs;
using definition::Row;
using definition::RowTangent;
using definition::Tangents;

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// The terms of one head's rows, every product taken alone.
class DerivativeTerms {
 public:
  DerivativeTerms(const Problem& problem, const TangentOperands& operands, const Operand& d_out, const Operand& d_lse,
                  int64_t b, int64_t hkv, LargestDerivativeTerms& terms)
      : problem_(problem),
        operands_(operands),
        d_out_operand_(d_out),
        d_lse_operand_(d_lse),
        b_(b),
        terms_(terms),
        inputs_(problem, b, hkv),
        tangents_(problem, operands, b, hkv),
        row_(problem),
        tangent_(problem),
        d_out_(index(problem.Dv)),
        unit_(unit(problem.is_f64() ? DType::f64 : DType::f32)) {
    for (std::vector<double>* by_key : {&score_, &moved_, &d_p_, &z_, &d_p_term_, &z_term_, &h_term_, &h_}) {
      by_key->resize(index(problem.Tk));
    }
  }

  void add(int64_t h, int64_t i) {
    definition::forward_row(problem_, inputs_, b_, h, i, row_);
    tangents_.run(inputs_, h, i, row_, tangent_);
    double t_sink = 0;
    if (operands_.sinks) t_sink = load_as_double(operands_.sinks.dtype, operands_.sinks.at(0, h, 0, 0));
    mean_term_ = 0;
    raise(mean_term_, row_.sink_weight * t_sink);
    raise(terms_.t_lse, mean_term_);
    if (row_.visible.empty()) return;
    double sum = 0;
    for (const int64_t j : row_.visible) {
      score_[index(j)] = largest_score_term(problem_, inputs_, row_, b_, h, i, j);
      moved_[index(j)] = tangent_term(h, i, j);
      raise(mean_term_, row_.sink_weight * score_[index(j)] * (t_sink - tangent_.t_lse));
      // Keys that are one another's copies round alike, and nothing averages that out.
      sum += weight(j) * moved_[index(j)];
    }
    raise(mean_term_, sum);
    add_forward();
    if (!d_out_operand_) return;
    const int64_t at = problem_.sequence(b_).q_begin + i;
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      d_out_[index(c)] = load_as<double>(problem_.dtype, d_out_operand_.at(b_, h, at, c));
    }
    const double d_lse = d_lse_operand_ ? load_as_double(d_lse_operand_.dtype, d_lse_operand_.at(b_, h, at, 0)) : 0.0;
    add_second(h, i, d_lse, t_sink);
  }

 private:
  double weight(int64_t j) const { return row_.weight[index(j)]; }
  /// w - W
  double centered(int64_t j) const { return tangent_.t_score[index(j)] - tangent_.t_lse; }
  /// A difference whose two sides have terms of this size, or what rounding leaves of it where they are equal.
  double rounded(double difference, double term) const { return std::max(std::fabs(difference), unit_ * term); }

  /// Largest term of w_j, sums on their way included. That of 1 - tanh^2 is 1.
  double tangent_term(int64_t h, int64_t i, int64_t j) const {
    double largest = 0;
    const double t_scale = operands_.scale_value();
    double q_sum = 0, k_sum = 0, scale_sum = 0;
    for (int64_t d = 0; d < problem_.D; ++d) {
      const double q = row_.q[index(d)], k = inputs_.k[index(j * problem_.D + d)];
      const double terms[] = {problem_.scale * tangent_.t_q[index(d)] * k,
                              problem_.scale * q * tangents_.inputs().k[index(j * problem_.D + d)], t_scale * q * k};
      for (const double term : terms) raise(largest, term);
      raise(largest, q_sum += terms[0]);
      raise(largest, k_sum += terms[1]);
      raise(largest, scale_sum += terms[2]);
    }
    raise(largest, tangent_.t_scaled[index(j)]);
    if (problem_.softcap > 0) {
      const double bend = 2 * row_.tanh[index(j)] / problem_.softcap;
      raise(largest, tangent_.t_scaled[index(j)] * bend * std::fabs(problem_.scale * row_.dot[index(j)]));
    }
    const int64_t distance = i + problem_.sequence(b_).offset - j;
    if (operands_.bias) raise(largest, load_as_double(operands_.bias.dtype, operands_.bias.at(b_, h, i, j)));
    if (operands_.slopes) {
      const double slope = load_as_double(operands_.slopes.dtype, operands_.slopes.at(0, h, 0, 0));
      raise(largest, slope * static_cast<double>(distance));
    }
    if (operands_.table) {
      const int64_t bucket = relative_bucket(distance, problem_.table_buckets, problem_.buckets);
      raise(largest, load_as_double(operands_.table.dtype, operands_.table.at(0, h, 0, bucket)));
    }
    return largest;
  }

  /// What W may be off by, and t_out with it.
  void add_forward() {
    for (const int64_t j : row_.visible) {
      raise(mean_term_, weight(j) * score_[index(j)] * centered(j));
    }
    raise(terms_.t_lse, mean_term_);
    for (const int64_t j : row_.visible) {
      const double kept = row_.kept[index(j)];
      for (int64_t c = 0; c < problem_.Dv; ++c) {
        const double v = inputs_.v[index(j * problem_.Dv + c)];
        const double t_v = tangents_.inputs().v[index(j * problem_.Dv + c)];
        const double out = row_.out[index(c)];
        raise(terms_.t_out, kept * weight(j) * moved_[index(j)] * v);
        raise(terms_.t_out, kept * weight(j) * centered(j) * v);
        raise(terms_.t_out, kept * weight(j) * t_v);
        raise(terms_.t_out, mean_term_ * out);
        raise(terms_.t_out,
              weight(j) * score_[index(j)] * (centered(j) * (kept * v - out) + kept * t_v - tangent_.t_out[index(c)]));
      }
    }
  }

  void add_products(const HeadInputs<double>& inputs, int64_t j, double& sum, double& term) const {
    sum = term = 0;
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      const double product = row_.kept[index(j)] * d_out_[index(c)] * inputs.v[index(j * problem_.Dv + c)];
      sum += product;
      raise(term, product);
    }
    raise(term, sum);
  }

  void add_second(int64_t h, int64_t i, double d_lse, double t_sink) {
    double delta = -d_lse;
    for (const int64_t j : row_.visible) {
      add_products(inputs_, j, d_p_[index(j)], d_p_term_[index(j)]);
      add_products(tangents_.inputs(), j, z_[index(j)], z_term_[index(j)]);
      delta += weight(j) * d_p_[index(j)];
    }
    double delta_term = 0;  // what delta may be off by
    raise(delta_term, d_lse);
    double mean = 0;  // sum a h
    for (const int64_t j : row_.visible) {
      d_p_[index(j)] -= delta;
      raise(delta_term, weight(j) * d_p_term_[index(j)]);
      raise(delta_term, weight(j) * score_[index(j)] * d_p_[index(j)]);
      h_[index(j)] = d_p_[index(j)] * centered(j) + z_[index(j)];
      mean += weight(j) * h_[index(j)];
    }
    const double of_sink = delta * (tangent_.t_lse - t_sink);
    double sink_term = 0;
    raise(sink_term, delta_term * (tangent_.t_lse - t_sink));
    raise(sink_term, delta * mean_term_);
    raise(sink_term, delta * t_sink);
    mean += row_.sink_weight * of_sink;
    double mean_h_term = 0;
    raise(mean_h_term, row_.sink_weight * sink_term);
    for (const int64_t j : row_.visible) {
      double& term = h_term_[index(j)];
      term = z_term_[index(j)];
      const double d_p_sides = std::max(d_p_term_[index(j)], delta_term);
      const double w_sides = std::max(moved_[index(j)], mean_term_);
      raise(term, d_p_sides * rounded(centered(j), w_sides));
      raise(term, w_sides * rounded(d_p_[index(j)], d_p_sides));
      raise(mean_h_term, weight(j) * term);
      raise(mean_h_term, weight(j) * score_[index(j)] * (h_[index(j)] - mean));
    }
    for (const int64_t j : row_.visible) {
      double g = weight(j) * std::max(h_term_[index(j)], mean_h_term);
      raise(g, weight(j) * score_[index(j)] * (h_[index(j)] - mean));
      double d_s = weight(j) * std::max(d_p_term_[index(j)], delta_term);
      raise(d_s, weight(j) * score_[index(j)] * d_p_[index(j)]);
      raise(terms_.g_bias, g);
      raise(terms_.g_slopes, g * static_cast<double>(i + problem_.sequence(b_).offset - j));
      raise(terms_.g_sinks, row_.sink_weight * score_[index(j)] * (of_sink - mean));
      add_key(j, g, d_s);
    }
    raise(terms_.g_sinks, row_.sink_weight * std::max(sink_term, mean_h_term));
    if (problem_.sinks) raise(terms_.g_sinks, row_.sink_weight * sink_of<double>(problem_, h) * (of_sink - mean));
  }

  /// What a G_ij and a dS_ij with terms of these sizes bring into the sums of a query and a key.
  void add_key(int64_t j, double g, double d_s) {
    double e = g;
    double d_c = d_s;
    if (problem_.softcap > 0) {
      const double bend = 2 * row_.tanh[index(j)] / problem_.softcap;
      const double gradient = weight(j) * d_p_[index(j)];
      raise(e, d_s * tangent_.t_scaled[index(j)] * bend);
      raise(e, gradient * moved_[index(j)] * bend);
      raise(e, gradient * tangent_.t_scaled[index(j)] * 2 * score_[index(j)] / (problem_.softcap * problem_.softcap));
      raise(d_c, gradient * bend * score_[index(j)]);
    }
    for (int64_t d = 0; d < problem_.D; ++d) {
      const int64_t at = j * problem_.D + d;
      raise(terms_.g_q, problem_.scale * e * inputs_.k[index(at)]);
      raise(terms_.g_q, problem_.scale * d_c * tangents_.inputs().k[index(at)]);
      raise(terms_.g_k, problem_.scale * e * row_.q[index(d)]);
      raise(terms_.g_k, problem_.scale * d_c * tangent_.t_q[index(d)]);
    }
    const double kept = row_.kept[index(j)] * weight(j);
    double moved = kept * std::max(moved_[index(j)], mean_term_);
    raise(moved, kept * score_[index(j)] * centered(j));
    for (const double d_out : d_out_) raise(terms_.g_v, moved * d_out);
  }

  const Problem& problem_;
  const TangentOperands& operands_;
  const Operand& d_out_operand_;
  const Operand& d_lse_operand_;
  int64_t b_;
  LargestDerivativeTerms& terms_;
  HeadInputs<double> inputs_;
  Tangents<double> tangents_;
  Row<double> row_;
  RowTangent<double> tangent_;
  std::vector<double> d_out_;
  std::vector<double> score_, moved_;                             // terms of s and w, by key
  std::vector<double> d_p_, z_, d_p_term_, z_term_, h_term_, h_;  // d_p_: less delta
  double mean_term_ = 0;                                          // of W
  double unit_;                                                   // of the compute type
};

}  // namespace

LargestDerivativeTerms largest_derivative_terms(const Problem& problem, const TangentOperands& tangents,
                                                const Operand& d_out, const Operand& d_lse) {
  std::vector<LargestDerivativeTerms> terms(index(problem.B * problem.Hkv));
  parallel_for(problem.B * problem.Hkv, problem.threads, [&](int64_t item, int) {
    const int64_t b = item / problem.Hkv;
    const int64_t hkv = item % problem.Hkv;
    DerivativeTerms head(problem, tangents, d_out, d_lse, b, hkv, terms[index(item)]);
    for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
      for (int64_t i = 0; i < problem.sequence(b).Tq; ++i) head.add(h, i);
    }
  });
  LargestDerivativeTerms largest;
  using Terms = LargestDerivativeTerms;
  for (double Terms::*member : {&Terms::t_out, &Terms::t_lse, &Terms::g_q, &Terms::g_k, &Terms::g_v, &Terms::g_bias,
                                &Terms::g_slopes, &Terms::g_sinks}) {
    for (const Terms& head : terms) raise(largest.*member, head.*member);
  }
  return largest;
}

}  // namespace qkv
