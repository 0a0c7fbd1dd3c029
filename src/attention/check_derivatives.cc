// SPDX-License-Identifier: Apache-2.0
//
// What the derivatives take beside the problem and a state: tangents and cotangents.
#include "attention/check_derivatives.h"

#include "attention/check.h"
#include "attention/check_view.h"

namespace qkv {
namespace {

struct Named {
  TensorView view;
  const char* name;
};

Operand check_tensor(const Problem& problem, const Named& tangent, Rows rows, int64_t heads, int64_t width,
                     int q_rank) {
  if (!tangent.view) return {};
  return check_like(problem, tangent.view, tangent.name, rows, heads, width, q_rank);
}

Operand check_option(const Named& tangent, const Named& tensor, const std::array<int, 4>& axes) {
  if (!tangent.view) return {};
  check_twin(tangent.view, tangent.name, tensor.view, tensor.name);
  return make_operand(tangent.view, axes);
}

Operand check_bias(const Named& tangent, const AttentionOptions& options) {
  if (!tangent.view) return {};
  check_twin(tangent.view, tangent.name, options.bias, "bias");
  return make_operand(tangent.view);
}

}  // namespace

TangentOperands check_tangents(const Problem& problem, const AttentionOptions& options,
                               const AttentionTangents& tangents, int q_rank) {
  TangentOperands operands;
  operands.q = check_tensor(problem, {tangents.q, "t_q"}, Rows::queries, problem.H, problem.D, q_rank);
  operands.k = check_tensor(problem, {tangents.k, "t_k"}, Rows::keys, problem.Hkv, problem.D, q_rank);
  operands.v = check_tensor(problem, {tangents.v, "t_v"}, Rows::keys, problem.Hkv, problem.Dv, q_rank);
  operands.bias = check_bias({tangents.bias, "t_bias"}, options);
  operands.slopes = check_option({tangents.slopes, "t_slopes"}, {options.slopes, "slopes"}, {-1, 0, -1, -1});
  operands.table = check_option({tangents.table, "t_table"}, {options.table, "table"}, {-1, 0, -1, 1});
  operands.sinks = check_option({tangents.sinks, "t_sinks"}, {options.sinks, "sinks"}, {-1, 0, -1, -1});
  if (tangents.scale) {
    check_scale_twin(problem, tangents.scale, "t_scale");
    operands.scale = make_operand(tangents.scale, {-1, -1, -1, -1});
  }
  return operands;
}

TangentOperands check_cotangents(const Problem& problem, const AttentionOptions& options,
                                 const AttentionCotangents& cotangents, int q_rank) {
  TangentOperands operands;
  operands.q = check_tensor(problem, {cotangents.q, "c_q"}, Rows::queries, problem.H, problem.D, q_rank);
  operands.k = check_tensor(problem, {cotangents.k, "c_k"}, Rows::keys, problem.Hkv, problem.D, q_rank);
  operands.v = check_tensor(problem, {cotangents.v, "c_v"}, Rows::keys, problem.Hkv, problem.Dv, q_rank);
  operands.bias = check_bias({cotangents.bias, "c_bias"}, options);
  operands.slopes = check_option({cotangents.slopes, "c_slopes"}, {options.slopes, "slopes"}, {-1, 0, -1, -1});
  operands.table = check_option({cotangents.table, "c_table"}, {options.table, "table"}, {-1, 0, -1, 1});
  operands.sinks = check_option({cotangents.sinks, "c_sinks"}, {options.sinks, "sinks"}, {-1, 0, -1, -1});
  return operands;
}

}  // namespace qkv
