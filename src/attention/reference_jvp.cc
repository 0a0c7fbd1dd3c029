// SPDX-License-Identifier: Apache-2.0
#include "attention/check.h"
#include "attention/reference_derivatives.h"
#include "qkv/support/parallel.h"

namespace qkv::definition {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// What stands for an absent tensor: one zero, met everywhere.
Operand zeros(DType dtype) {
  alignas(8) static const char zero[8] = {};
  Operand operand;
  operand.data = zero;
  operand.dtype = dtype;
  operand.element_size = size_of(dtype);
  return operand;
}

Problem with_tangents(Problem problem, const TangentOperands& operands) {
  problem.k = operands.k ? operands.k : zeros(problem.dtype);
  problem.v = operands.v ? operands.v : zeros(problem.dtype);
  problem.table = {};
  return problem;
}

template <class T>
T load_one(const Operand& operand, int64_t h, int64_t column) {
  return operand ? load_as<T>(operand.dtype, operand.at(0, h, 0, column)) : T(0);
}

template <class T>
void add_products(const std::vector<T>& row, const std::vector<T>& columns, int64_t keys, KeyRange range,
                  std::vector<T>& sums) {
  for (size_t d = 0; d < row.size(); ++d) {
    const T factor = row[d];
    const T* column = columns.data() + static_cast<int64_t>(d) * keys;
    for (int64_t j = range.begin; j < range.end; ++j) sums[index(j)] += factor * column[j];
  }
}

}  // namespace

template <class T>
RowTangent<T>::RowTangent(const Problem& problem)
    : t_q(index(problem.D)), t_scaled(index(problem.Tk)), t_score(index(problem.Tk)), t_out(index(problem.Dv)) {}

template <class T>
Tangents<T>::Tangents(const Problem& problem, const TangentOperands& operands, int64_t b, int64_t hkv)
    : problem_(problem), operands_(operands), b_(b), inputs_(with_tangents(problem, operands), b, hkv) {}

/// w_j, from t_scaled on.
template <class T>
T Tangents<T>::score_tangent(const HeadInputs<T>& inputs, int64_t h, int64_t i, int64_t j, const Row<T>& row,
                             const RowTangent<T>& tangent) const {
  const int64_t distance = i + problem_.sequence(b_).offset - j;
  T w = tangent.t_scaled[index(j)];
  if (problem_.softcap > 0) w *= 1 - row.tanh[index(j)] * row.tanh[index(j)];
  if (operands_.bias) w += load_as<T>(operands_.bias.dtype, operands_.bias.at(b_, h, i, j));
  if (operands_.slopes) w += load_one<T>(operands_.slopes, h, 0) * static_cast<T>(alibi_distance(distance));
  if (operands_.table) w += load_one<T>(operands_.table, h, inputs.buckets[index(distance - inputs.first_distance)]);
  return w;
}

template <class T>
void Tangents<T>::run(const HeadInputs<T>& inputs, int64_t h, int64_t i, const Row<T>& row,
                      RowTangent<T>& tangent) const {
  const Sequence& sequence = problem_.sequence(b_);
  const KeyRange range = visible_range(problem_, sequence, i);
  for (int64_t d = 0; d < problem_.D; ++d) {
    tangent.t_q[index(d)] =
        operands_.q ? load_as<T>(operands_.q.dtype, operands_.q.at(b_, h, sequence.q_begin + i, d)) : T(0);
  }
  std::vector<T>& products = tangent.t_scaled;
  std::fill(products.begin() + range.begin, products.begin() + range.end, T(0));
  if (operands_.q) add_products(tangent.t_q, inputs.k_columns, sequence.Tk, range, products);
  if (operands_.k) add_products(row.q, inputs_.k_columns, sequence.Tk, range, products);
  const T scale = static_cast<T>(problem_.scale);
  const T t_scale = static_cast<T>(operands_.scale_value());
  // A sink without weight, and its tangent, are nothing.
  T sum = row.sink_weight == 0 ? T(0) : row.sink_weight * load_one<T>(operands_.sinks, h, 0);
  for (const int64_t j : row.visible) {
    products[index(j)] *= scale;
    if (operands_.scale) products[index(j)] += t_scale * row.dot[index(j)];
    tangent.t_score[index(j)] = score_tangent(inputs, h, i, j, row, tangent);
    sum += row.weight[index(j)] * tangent.t_score[index(j)];
  }
  tangent.t_lse = sum;
  std::fill(tangent.t_out.begin(), tangent.t_out.end(), T(0));
  for (const int64_t j : row.visible) {
    const T weight = row.kept[index(j)] * row.weight[index(j)];
    const T moved = round_factor(problem_.dtype, weight * (tangent.t_score[index(j)] - sum));
    const T kept = round_factor(problem_.dtype, weight);
    const T* v = inputs.v.data() + j * problem_.Dv;
    const T* t_v = inputs_.v.data() + j * problem_.Dv;
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      tangent.t_out[index(c)] += moved * v[c];
      if (operands_.v) tangent.t_out[index(c)] += kept * t_v[c];
    }
  }
}

Operand ReferenceResults::tensor(Tensor& result, const Dims& shape) const {
  result = Tensor(dtype(problem_.dtype), shape);
  return problem_.packed ? make_operand(result.view(), {-1, 1, 0, 2}) : make_operand(result.view());
}

Operand ReferenceResults::per_row(Tensor& result, const TensorView& q) const {
  Dims shape;
  for (int axis = 0; axis + 1 < q.rank(); ++axis) shape.push_back(q.size(axis));
  result = Tensor(dtype(problem_.is_f64() ? DType::f64 : DType::f32), shape);
  if (problem_.packed) return make_operand(result.view(), {-1, 1, 0, -1});
  return make_operand(result.view(), {q.rank() - 4, q.rank() >= 3 ? q.rank() - 3 : -1, q.rank() - 2, -1});
}

#define QKV_INSTANTIATE(T)       \
  template struct RowTangent<T>; \
  template class Tangents<T>;
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
QKV_INSTANTIATE(long double)
#undef QKV_INSTANTIATE

}  // namespace qkv::definition

namespace qkv {
namespace {

using namespace definition;

template <class T>
void run_head(const Problem& problem, const TangentOperands& operands, int64_t b, int64_t hkv, const Operand& t_out,
              const Operand& t_lse) {
  const HeadInputs<T> inputs(problem, b, hkv);
  const Tangents<T> tangents(problem, operands, b, hkv);
  Row<T> row(problem);
  RowTangent<T> tangent(problem);
  const Sequence& sequence = problem.sequence(b);
  for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
    for (int64_t i = 0; i < sequence.Tq; ++i) {
      forward_row(problem, inputs, b, h, i, row);
      tangents.run(inputs, h, i, row, tangent);
      store_reference(t_out, b, h, sequence.q_begin + i, tangent.t_out.data(), problem.Dv);
      store_reference(t_lse, b, h, sequence.q_begin + i, &tangent.t_lse, 1);
    }
  }
}

}  // namespace

AttentionJvpReference attention_jvp_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                              const AttentionOptions& options, Arithmetic arithmetic,
                                              const AttentionTangents& tangents) {
  const Problem problem = check_problem(q, k, v, options);
  const TangentOperands operands = check_tangents(problem, options, tangents, q.rank());
  const ReferenceResults results(problem, arithmetic);
  AttentionJvpReference reference;
  Dims shape = q.shape();
  shape[shape.rank() - 1] = problem.Dv;
  const Operand t_out = results.tensor(reference.t_out, shape);
  const Operand t_lse = results.per_row(reference.t_lse, q);
  const auto evaluate = [&](auto zero) {
    parallel_for(problem.B * problem.Hkv, problem.threads, [&](int64_t item, int) {
      run_head<decltype(zero)>(problem, operands, item / problem.Hkv, item % problem.Hkv, t_out, t_lse);
    });
  };
  if (arithmetic == Arithmetic::plain) {
    problem.is_f64() ? evaluate(0.0) : evaluate(0.0F);
  } else {
    problem.is_f64() ? evaluate(0.0L) : evaluate(0.0);
  }
  return reference;
}

}  // namespace qkv
