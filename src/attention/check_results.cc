// SPDX-License-Identifier: Apache-2.0
//
// What callers hand in beside the problem: outputs, upstream gradients, gradients. And that no output overlaps
// anything.
#include <vector>

#include "attention/check.h"
#include "attention/check_view.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

/// m or l of a state: all rows in one axis.
Operand check_state_rows(const Problem& problem, const Tensor& rows, const char* name) {
  const Dims shape = problem.packed ? Dims{problem.Tq, problem.H} : Dims{problem.B, problem.H, problem.Tq};
  check_shape(rows.view(), name, shape);
  check_dtype(rows.view(), name, problem.is_f64() ? DType::f64 : DType::f32);
  const Dims flat{problem.rows()};
  return make_operand(TensorView(rows.view().dtype(), rows.view().data(), flat), {-1, -1, 0, -1});
}

}  // namespace

Operand check_like(const Problem& problem, const TensorView& view, const char* name, Rows rows, int64_t heads,
                   int64_t width, int q_rank) {
  const int64_t count = rows == Rows::queries ? problem.Tq : problem.Tk;
  Dims shape;
  if (problem.packed) {
    shape = {count, heads, width};
  } else {
    if (q_rank >= 4) shape.push_back(problem.B);
    if (q_rank >= 3) shape.push_back(heads);
    shape.push_back(count);
    shape.push_back(width);
  }
  check_shape(view, name, shape);
  check_dtype(view, name, problem.dtype);
  return problem.packed ? make_operand(view, {-1, 1, 0, 2}) : make_operand(view);
}

Operand check_per_row(const Problem& problem, const TensorView& view, const char* name, Rows rows, DType dtype,
                      int q_rank) {
  const int64_t count = rows == Rows::queries ? problem.Tq : problem.Tk;
  Dims shape;
  if (problem.packed) {
    shape = {count, problem.H};
  } else {
    if (q_rank >= 4) shape.push_back(problem.B);
    if (q_rank >= 3) shape.push_back(problem.H);
    shape.push_back(count);
  }
  check_shape(view, name, shape);
  check_dtype(view, name, dtype);
  if (problem.packed) return make_operand(view, {-1, 1, 0, -1});
  return make_operand(view, {q_rank - 4, q_rank - 3, q_rank - 2, -1});
}

Operand check_per_row(const Problem& problem, const TensorView& view, const char* name, int q_rank) {
  return check_per_row(problem, view, name, Rows::queries, problem.is_f64() ? DType::f64 : DType::f32, q_rank);
}

void check_twin(const TensorView& view, const char* name, const TensorView& tensor, const char* tensor_name) {
  require(static_cast<bool>(tensor), "attention: ", name, " came without ", tensor_name);
  check_shape(view, name, tensor.shape());
  check_dtype(view, name, tensor.dtype());
}

void check_scale_twin(const Problem& problem, const TensorView& view, const char* name) {
  require(view.rank() == 0 || (view.rank() == 1 && view.size(0) == 1), "attention: ", name, " must be [1] or [], got ",
          view.shape());
  check_memory(view, name);
  check_dtype(view, name, problem.is_f64() ? DType::f64 : DType::f32);
}

StateOperands check_state(const Problem& problem, const AttentionState& state, int q_rank) {
  StateOperands operands;
  operands.row_max = check_state_rows(problem, state.row_max, "state.row_max");
  operands.row_sum = check_state_rows(problem, state.row_sum, "state.row_sum");
  if (state.wide_out) {
    Dims shape = state.row_max.shape();
    shape.push_back(problem.Dv);
    check_shape(state.wide_out.view(), "state.wide_out", shape);
    check_dtype(state.wide_out.view(), "state.wide_out", DType::f32);
    operands.out =
        problem.packed ? make_operand(state.wide_out.view(), {-1, 1, 0, 2}) : make_operand(state.wide_out.view());
  } else {
    operands.out = check_like(problem, state.out, "state.out", Rows::queries, problem.H, problem.Dv, q_rank);
  }
  return operands;
}

void check_overlap(std::initializer_list<NamedView> inputs, const AttentionOptions& options,
                   std::initializer_list<NamedView> outputs) {
  std::vector<NamedView> all(inputs);
  all.insert(all.end(), {{"offsets", options.offsets},
                         {"bias", options.bias},
                         {"slopes", options.slopes},
                         {"table", options.table},
                         {"sinks", options.sinks},
                         {"mask", options.mask},
                         {"key_lengths", options.key_lengths},
                         {"query_lengths", options.query_lengths},
                         {"query_segment", options.query_segment},
                         {"key_segment", options.key_segment},
                         {"block_mask", options.block_mask},
                         {"query_starts", options.query_starts},
                         {"key_starts", options.key_starts}});
  for (const NamedView& output : outputs) {
    if (!output.view) continue;
    require(!overlaps_itself(output.view), "attention: ", output.name, " overlaps itself, strides ",
            output.view.strides());
    for (const NamedView& other : all) {
      require(!other.view || !overlap(output.view, other.view), "attention: ", output.name, " overlaps ", other.name);
    }
    all.push_back(output);
  }
}

}  // namespace qkv
