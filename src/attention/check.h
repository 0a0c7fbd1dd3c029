// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "attention/problem.h"

namespace qkv {

/// The only place of the room that throws for a wrong call. Messages start with "attention: ".
Problem check_problem(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options);
/// The same with keys and values of a cache: each sequence has its own Tk.
Problem check_cached_problem(const TensorView& q, const KeyValueCache& cache, const AttentionOptions& options);

/// A tensor with the axes of q (last one of the given width) in the problem's dtype: out, d_out, d_q, tangents.
/// For k and v likewise with `keys` true. Returns it as an operand over (b, h, row, column).
enum class Rows : uint8_t { queries, keys };
Operand check_like(const Problem& problem, const TensorView& view, const char* name, Rows rows, int64_t heads,
                   int64_t width, int q_rank);
/// One number per query or key: [B, H, T] of rank(q) - 1, or [total, H]. As an operand over (b, h, row or key, -).
Operand check_per_row(const Problem& problem, const TensorView& view, const char* name, Rows rows, DType dtype,
                      int q_rank);
/// The same of queries, f32, or f64 for f64: lse and its gradient.
Operand check_per_row(const Problem& problem, const TensorView& view, const char* name, int q_rank);

/// Where a gradient (or tangent) of an option's tensor lives: the shape and dtype of that tensor, which must be there.
void check_twin(const TensorView& view, const char* name, const TensorView& tensor, const char* tensor_name);
/// d_scale (or t_scale): [1] or [], f32, or f64 for f64.
void check_scale_twin(const Problem& problem, const TensorView& view, const char* name);

/// The state of a forward pass as operands: m and l over (-, -, row number, -), out over (b, h, row, column).
struct StateOperands {
  Operand row_max;
  Operand row_sum;
  Operand out;
};
StateOperands check_state(const Problem& problem, const AttentionState& state, int q_rank);

struct NamedView {
  const char* name;
  TensorView view;
};
/// Throws when an output overlaps an input, another output or itself. Absent views are skipped.
void check_overlap(std::initializer_list<NamedView> inputs, const AttentionOptions& options,
                   std::initializer_list<NamedView> outputs);

}  // namespace qkv
