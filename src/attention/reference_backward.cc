// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention/reference_head.h"

namespace qkv::definition {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// dP_ij = r_ij (dO_i . v_j), into gradient.d_p.
template <class T>
void weight_gradients(const Problem& problem, const HeadInputs<T>& inputs, const Sequence& sequence, KeyRange range,
                      const Row<T>& row, RowGradient<T>& gradient) {
  std::fill(gradient.d_p.begin() + range.begin, gradient.d_p.begin() + range.end, T(0));
  for (int64_t c = 0; c < problem.Dv; ++c) {
    const T d_out = gradient.d_out[index(c)];
    const T* column = inputs.v_columns.data() + c * sequence.Tk;
    for (int64_t j = range.begin; j < range.end; ++j) gradient.d_p[index(j)] += d_out * column[j];
  }
  for (const int64_t j : row.visible) gradient.d_p[index(j)] *= row.kept[index(j)];
}

/// dS_ij = a_ij (dP_ij - delta_i) and dC_ij = dS_ij (1 - tanh^2), with delta_i = sum_j a_ij dP_ij - dLSE_i. Returns it.
template <class T>
T score_gradients(const Problem& problem, const Row<T>& row, RowGradient<T>& gradient) {
  T delta = 0;
  for (const int64_t j : row.visible) delta += row.weight[index(j)] * gradient.d_p[index(j)];
  delta -= gradient.d_lse;
  for (const int64_t j : row.visible) {
    const T d_s = row.weight[index(j)] * (gradient.d_p[index(j)] - delta);
    const T tanh = row.tanh[index(j)];
    gradient.d_s[index(j)] = d_s;
    gradient.d_c[index(j)] = problem.softcap > 0 ? d_s * (1 - tanh * tanh) : d_s;
  }
  return delta;
}

/// dV_j += r_ij a_ij dO_i,  dQ_i = scale * sum_j dC_ij k_j,  dK_j += dC_ij q_i (its scale is applied at the end).
template <class T>
void tensor_gradients(const Problem& problem, const HeadInputs<T>& inputs, const Row<T>& row, RowGradient<T>& gradient,
                      HeadGradients<T>& sums) {
  std::fill(gradient.d_q.begin(), gradient.d_q.end(), T(0));
  for (const int64_t j : row.visible) {
    const T weight = round_factor(problem.dtype, row.kept[index(j)] * row.weight[index(j)]);
    T* d_v = sums.d_v.data() + j * problem.Dv;
    for (int64_t c = 0; c < problem.Dv; ++c) d_v[c] += weight * gradient.d_out[index(c)];
    const T d_c = round_factor(problem.dtype, gradient.d_c[index(j)]);
    const T* k = inputs.k.data() + j * problem.D;
    T* d_k = sums.d_k.data() + j * problem.D;
    for (int64_t d = 0; d < problem.D; ++d) {
      gradient.d_q[index(d)] += d_c * k[d];
      d_k[d] += d_c * row.q[index(d)];
    }
  }
  for (T& d_q : gradient.d_q) d_q *= static_cast<T>(problem.scale);
}

/// The sums over dS and dC alone.
template <class T>
void option_gradients(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i,
                      const Row<T>& row, const RowGradient<T>& gradient, HeadGradients<T>& sums,
                      BiasGradient<T>& bias) {
  const size_t member = index(h % problem.group());
  for (const int64_t j : row.visible) {
    const T d_s = gradient.d_s[index(j)];
    const int64_t distance = i + problem.sequence(b).offset - j;
    sums.d_scale[member] += gradient.d_c[index(j)] * row.dot[index(j)];
    if (problem.bias) bias.at(b, h, i, j) += d_s;
    if (problem.slopes) sums.d_slope[member] += static_cast<T>(alibi_distance(distance)) * d_s;
    if (problem.table) {
      const int64_t bucket = inputs.buckets[index(distance - inputs.first_distance)];
      sums.d_table[member * index(problem.table_buckets) + index(bucket)] += d_s;
    }
  }
}

}  // namespace

template <class T>
RowGradient<T>::RowGradient(const Problem& problem) : d_out(index(problem.Dv)), d_q(index(problem.D)) {
  for (std::vector<T>* by_key : {&d_p, &d_s, &d_c}) by_key->resize(index(problem.Tk));
}

template <class T>
HeadGradients<T>::HeadGradients(const Problem& problem, const Sequence& sequence)
    : d_k(index(sequence.Tk * problem.D)),
      d_v(index(sequence.Tk * problem.Dv)),
      d_table(index(problem.group() * problem.table_buckets)),
      d_slope(index(problem.group())),
      d_sink(index(problem.group())),
      d_scale(index(problem.group())) {}

template <class T>
void backward_row(const Problem& problem, const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i,
                  const Row<T>& row, RowGradient<T>& gradient, HeadGradients<T>& sums, BiasGradient<T>& bias) {
  const Sequence& sequence = problem.sequence(b);
  const size_t member = index(h % problem.group());
  if (row.visible.empty()) {  // nothing flows but dLSE into the sink, which lse then is
    std::fill(gradient.d_q.begin(), gradient.d_q.end(), T(0));
    if (problem.sinks) sums.d_sink[member] += gradient.d_lse;
    return;
  }
  weight_gradients(problem, inputs, sequence, visible_range(problem, sequence, i), row, gradient);
  const T delta = score_gradients(problem, row, gradient);
  tensor_gradients(problem, inputs, row, gradient, sums);
  option_gradients(problem, inputs, b, h, i, row, gradient, sums, bias);
  if (problem.sinks) sums.d_sink[member] -= row.sink_weight * delta;
}

#define QKV_INSTANTIATE(T)                                                                                   \
  template struct RowGradient<T>;                                                                            \
  template struct HeadGradients<T>;                                                                          \
  template void backward_row(const Problem&, const HeadInputs<T>&, int64_t, int64_t, int64_t, const Row<T>&, \
                             RowGradient<T>&, HeadGradients<T>&, BiasGradient<T>&);
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
QKV_INSTANTIATE(long double)
#undef QKV_INSTANTIATE

}  // namespace qkv::definition
