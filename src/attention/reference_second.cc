// SPDX-License-Identifier: Apache-2.0
//
// The gradients of <c_q, d_q> + <c_k, d_k> + <c_v, d_v> + <c_bias, d_bias> + ..., which is
// sum_i dO_i . t_out_i + dLSE_i t_lse_i along the cotangents: reverse mode over the lines of the backward.
//
//   dS_j = a_j (dP_j - delta)        has the cotangent w_j, the tangent of the score
//   dP_j                             a_j (w_j - W)
//   a_j                              w_j (dP_j - delta) - W dP_j + z_j,   z_j = r_j dO . c_v_j
//   s_j                              G_j = a_j (that - sum_k a_k that_k)
//   scale q . k_j                    E_j = G_j (1 - tanh^2) + dS_j u_j d(1 - tanh^2)/ds
// A sink is one more key, with dP = z = 0 and the tangent of the sink for w.
#include "attention/check.h"
#include "attention/reference_derivatives.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

using namespace definition;

size_t index(int64_t i) { return static_cast<size_t>(i); }

struct SecondResults {
  Operand q, k, v, d_out, d_lse;
};

/// Of what all batch entries share, summed over them in order.
template <class T>
struct SharedGradients {
  BiasGradient<T> bias;
  std::vector<T> slopes, table, sinks;  // [H], [H, buckets], [H]
};

template <class T>
class SecondHead {
 public:
  SecondHead(const Problem& problem, const TangentOperands& cotangents, int64_t b, int64_t hkv,
             SharedGradients<T>& shared)
      : problem_(problem),
        b_(b),
        hkv_(hkv),
        shared_(shared),
        t_sinks_(cotangents.sinks),
        inputs_(problem, b, hkv),
        cotangents_(problem, cotangents, b, hkv),
        row_(problem),
        tangent_(problem),
        d_out_(index(problem.Dv)),
        g_q_(index(problem.D)),
        g_k_(inputs_.k.size()),
        g_v_(inputs_.v.size()) {
    for (std::vector<T>* by_key : {&d_p_, &z_, &g_}) by_key->resize(index(problem.Tk));
  }

  void run(const Operand& d_out, const Operand& d_lse, const SecondResults& results) {
    const Sequence& sequence = problem_.sequence(b_);
    for (int64_t h = hkv_ * problem_.group(); h < (hkv_ + 1) * problem_.group(); ++h) {
      for (int64_t i = 0; i < sequence.Tq; ++i) {
        const int64_t at = sequence.q_begin + i;
        for (int64_t c = 0; c < problem_.Dv; ++c) {
          d_out_[index(c)] = load_as<T>(problem_.dtype, d_out.at(b_, h, at, c));
        }
        run_row(h, i, d_lse ? load_as<T>(d_lse.dtype, d_lse.at(b_, h, at, 0)) : T(0));
        store_reference(results.q, b_, h, at, g_q_.data(), problem_.D);
        store_reference(results.d_out, b_, h, at, tangent_.t_out.data(), problem_.Dv);
        store_reference(results.d_lse, b_, h, at, &tangent_.t_lse, 1);
      }
    }
    for (T& g_k : g_k_) g_k *= static_cast<T>(problem_.scale);
    for (int64_t j = 0; j < sequence.Tk; ++j) {
      store_reference(results.k, b_, hkv_, sequence.k_begin + j, g_k_.data() + j * problem_.D, problem_.D);
      store_reference(results.v, b_, hkv_, sequence.k_begin + j, g_v_.data() + j * problem_.Dv, problem_.Dv);
    }
  }

 private:
  void run_row(int64_t h, int64_t i, T d_lse) {
    forward_row(problem_, inputs_, b_, h, i, row_);
    cotangents_.run(inputs_, h, i, row_, tangent_);
    value_products(problem_, inputs_, d_out_, b_, i, row_, d_p_);
    value_products(problem_, cotangents_.inputs(), d_out_, b_, i, row_, z_);
    T delta = 0;
    for (const int64_t j : row_.visible) delta += row_.weight[index(j)] * d_p_[index(j)];
    delta -= d_lse;
    const T of_sink =
        row_.sink_weight == 0 || !t_sinks_ ? T(0) : -delta * load_as<T>(t_sinks_.dtype, t_sinks_.at(0, h, 0, 0));
    T sum = row_.sink_weight == 0 ? T(0) : row_.sink_weight * of_sink;
    for (const int64_t j : row_.visible) {
      const T w = tangent_.t_score[index(j)];
      g_[index(j)] = w * (d_p_[index(j)] - delta) - tangent_.t_lse * d_p_[index(j)] + z_[index(j)];
      sum += row_.weight[index(j)] * g_[index(j)];
    }
    std::fill(g_q_.begin(), g_q_.end(), T(0));
    for (const int64_t j : row_.visible) {
      const T g = row_.weight[index(j)] * (g_[index(j)] - sum);
      add_terms(h, i, j, g);
      add_products(j, g, row_.weight[index(j)] * (d_p_[index(j)] - delta));
    }
    for (T& g_q : g_q_) g_q *= static_cast<T>(problem_.scale);
    if (row_.sink_weight != 0 && !row_.visible.empty()) {
      shared_.sinks[index(h)] += row_.sink_weight * (of_sink - sum);
    }
  }

  void add_terms(int64_t h, int64_t i, int64_t j, T g) {
    if (problem_.bias) shared_.bias.at(b_, h, i, j) += g;
    const int64_t distance = i + problem_.sequence(b_).offset - j;
    if (problem_.slopes) shared_.slopes[index(h)] += g * static_cast<T>(alibi_distance(distance));
    if (problem_.table) {
      const int64_t bucket = inputs_.buckets[index(distance - inputs_.first_distance)];
      shared_.table[index(h * problem_.table_buckets + bucket)] += g;
    }
  }

  /// What a key adds to g_q, g_k and g_v, from its G and dS.
  void add_products(int64_t j, T g, T d_s) {
    const T tanh = row_.tanh[index(j)];
    T e = g;
    T d_c = d_s;
    if (problem_.softcap > 0) {
      const T slope = 1 - tanh * tanh;
      e = g * slope - d_s * tangent_.t_scaled[index(j)] * 2 * tanh * slope / static_cast<T>(problem_.softcap);
      d_c = d_s * slope;
    }
    e = round_factor(problem_.dtype, e);
    d_c = round_factor(problem_.dtype, d_c);
    const T moved = round_factor(
        problem_.dtype, row_.kept[index(j)] * row_.weight[index(j)] * (tangent_.t_score[index(j)] - tangent_.t_lse));
    const T* k = inputs_.k.data() + j * problem_.D;
    const T* c_k = cotangents_.inputs().k.data() + j * problem_.D;
    T* g_k = g_k_.data() + j * problem_.D;
    for (int64_t d = 0; d < problem_.D; ++d) {
      g_q_[index(d)] += e * k[d] + d_c * c_k[d];
      g_k[d] += e * row_.q[index(d)] + d_c * tangent_.t_q[index(d)];
    }
    T* g_v = g_v_.data() + j * problem_.Dv;
    for (int64_t c = 0; c < problem_.Dv; ++c) g_v[c] += moved * d_out_[index(c)];
  }

  const Problem& problem_;
  int64_t b_, hkv_;
  SharedGradients<T>& shared_;
  Operand t_sinks_;
  HeadInputs<T> inputs_;
  Tangents<T> cotangents_;
  Row<T> row_;
  RowTangent<T> tangent_;
  std::vector<T> d_out_, g_q_, g_k_, g_v_;
  std::vector<T> d_p_, z_, g_;  // by key
};

template <class T>
void store_all(Tensor& result, const std::vector<T>& values) {
  for (size_t at = 0; at < values.size(); ++at) {
    store_as<T>(result.dtype(), result.mutable_view().at(static_cast<int64_t>(at)), values[at]);
  }
}

template <class T>
void evaluate(const Problem& problem, const TangentOperands& cotangents, const Operand& d_out, const Operand& d_lse,
              const TensorView& bias, const SecondResults& results, AttentionSecondReference& reference) {
  SharedGradients<T> shared;
  if (problem.bias) {
    shared.bias.stride = make_operand(TensorView(bias.dtype(), nullptr, bias.shape())).stride;
    shared.bias.sum.resize(index(bias.elements()));
  }
  if (problem.slopes) shared.slopes.resize(index(problem.H));
  if (problem.table) shared.table.resize(index(problem.H * problem.table_buckets));
  if (problem.sinks) shared.sinks.resize(index(problem.H));
  // Heads of all batch entries share: their sums run in one order.
  const bool alone = problem.bias || problem.slopes || problem.table || problem.sinks;
  parallel_for(problem.B * problem.Hkv, alone ? 1 : problem.threads, [&](int64_t item, int) {
    SecondHead<T>(problem, cotangents, item / problem.Hkv, item % problem.Hkv, shared).run(d_out, d_lse, results);
  });
  store_all(reference.g_bias, shared.bias.sum);
  store_all(reference.g_slopes, shared.slopes);
  store_all(reference.g_table, shared.table);
  store_all(reference.g_sinks, shared.sinks);
}

}  // namespace

template <class T>
void definition::value_products(const Problem& problem, const HeadInputs<T>& inputs, const std::vector<T>& d_out,
                                int64_t b, int64_t i, const Row<T>& row, std::vector<T>& products) {
  const Sequence& sequence = problem.sequence(b);
  const KeyRange range = visible_range(problem, sequence, i);
  std::fill(products.begin() + range.begin, products.begin() + range.end, T(0));
  for (int64_t c = 0; c < problem.Dv; ++c) {
    const T factor = d_out[index(c)];
    const T* column = inputs.v_columns.data() + c * sequence.Tk;
    for (int64_t j = range.begin; j < range.end; ++j) products[index(j)] += factor * column[j];
  }
  for (const int64_t j : row.visible) products[index(j)] *= row.kept[index(j)];
}

AttentionSecondReference attention_second_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                                    const AttentionOptions& options, Arithmetic arithmetic,
                                                    const AttentionUpstream& upstream,
                                                    const AttentionCotangents& cotangents) {
  const Problem problem = check_problem(q, k, v, options);
  const TensorView& d_out = upstream.d_out;
  const Operand d_out_rows = check_like(problem, d_out, "d_out", Rows::queries, problem.H, problem.Dv, q.rank());
  const Operand d_lse = upstream.d_lse ? check_per_row(problem, upstream.d_lse, "d_lse", q.rank()) : Operand{};
  const TangentOperands operands = check_cotangents(problem, options, cotangents, q.rank());
  const ReferenceResults types(problem, arithmetic);
  AttentionSecondReference reference;
  const SecondResults results{.q = types.tensor(reference.g_q, q.shape()),
                              .k = types.tensor(reference.g_k, k.shape()),
                              .v = types.tensor(reference.g_v, v.shape()),
                              .d_out = types.tensor(reference.g_d_out, d_out.shape()),
                              .d_lse = types.per_row(reference.g_d_lse, q)};
  const auto like = [&](const TensorView& tensor) {
    return tensor ? Tensor(types.dtype(tensor.dtype()), tensor.shape()) : Tensor();
  };
  reference.g_bias = like(options.bias);
  reference.g_slopes = like(options.slopes);
  reference.g_table = like(options.table);
  reference.g_sinks = like(options.sinks);
  const auto run = [&](auto zero) {
    evaluate<decltype(zero)>(problem, operands, d_out_rows, d_lse, options.bias, results, reference);
  };
  if (arithmetic == Arithmetic::plain) {
    problem.is_f64() ? run(0.0) : run(0.0F);
  } else {
    problem.is_f64() ? run(0.0L) : run(0.0);
  }
  return reference;
}

}  // namespace qkv
