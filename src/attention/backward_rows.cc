// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_rows.h"

#include <cmath>
#include <limits>

#include "attention/mask.h"
#include "attention/plan.h"
#include "attention/rows.h"
#include "attention/sink.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

bool sees_any_key(const Problem& problem, int64_t b, int64_t h, int64_t i) {
  const KeyRange range = visible_range(problem, problem.sequence(b), i);
  for (int64_t j = range.begin; j < range.end; ++j) {
    if (!mask_shows(problem, b, h, i, j)) continue;
    if (!problem.bias) return true;
    const double bias = load_as_double(problem.bias.dtype, problem.bias.at(b, h, i, j));
    if (bias != -std::numeric_limits<double>::infinity()) return true;
  }
  return false;
}

/// dO . out of one row.
double row_product(const Operand& d_out, const Operand& out, int64_t b, int64_t h, int64_t row, int64_t columns) {
  double sum = 0;
  for (int64_t c = 0; c < columns; ++c) {
    sum += load_as<double>(d_out.dtype, d_out.at(b, h, row, c)) * load_as<double>(out.dtype, out.at(b, h, row, c));
  }
  return sum;
}

}  // namespace

template <class T>
BackwardRows<T> backward_rows(const Problem& problem, const StateOperands& state, const Operand& d_out,
                              const Operand& d_lse) {
  const int64_t count = problem.rows();
  BackwardRows<T> rows{.d_out = d_out,
                       .m = AlignedArray<T>(count),
                       .inverse_l = AlignedArray<T>(count),
                       .inverse_l_low = AlignedArray<T>(count),
                       .sink_weight = AlignedArray<T>(count),
                       .whole_block = AlignedArray<int64_t>(count),
                       .delta = AlignedArray<T>(count),
                       .final_delta = AlignedArray<T>(count)};
  const double work = static_cast<double>(count) * static_cast<double>(problem.Dv);
  parallel_for(problem.B * problem.H, useful_threads(problem, work), [&](int64_t head, int) {
    const int64_t b = head / problem.H;
    const int64_t h = head % problem.H;
    const Sequence& sequence = problem.sequence(b);
    for (int64_t i = 0; i < sequence.Tq; ++i) {
      const int64_t number = problem.row_index(b, h) + i * problem.row_step();
      const int64_t row = sequence.q_begin + i;
      const int64_t to = contiguous_row(problem, b, h) + i;
      const T l = load_as<T>(DTypeOf<T>::value, state.row_sum.at(0, 0, number, 0));
      rows.m[to] = load_as<T>(DTypeOf<T>::value, state.row_max.at(0, 0, number, 0));
      rows.inverse_l[to] = l == 0 ? T{0} : 1 / l;
      rows.inverse_l_low[to] = l == 0 ? T{0} : std::fma(-l, rows.inverse_l[to], T{1}) * rows.inverse_l[to];
      rows.sink_weight[to] = sink_weight(problem, h, rows.m[to], l);
      const KeyRange range = visible_range(problem, sequence, i);
      const int64_t first_block = range.begin / kBackwardKeys;
      const bool is_whole = range.empty() || first_block == (range.end - 1) / kBackwardKeys;
      rows.whole_block[to] = is_whole ? first_block : -1;
      double product = is_whole ? 0 : row_product(d_out, state.out, b, h, row, problem.Dv);
      // Infinity times the zero output of an empty row is not its gradient.
      if (!std::isfinite(product) && !sees_any_key(problem, b, h, i)) product = 0;
      if (d_lse) product -= load_as_double(d_lse.dtype, d_lse.at(b, h, row, 0));
      rows.delta[to] = static_cast<T>(product);
      rows.final_delta[to] = rows.delta[to];
    }
  });
  return rows;
}

template <class T>
void store_sink_gradients(const Problem& problem, const BackwardRows<T>& rows, const MutableTensorView& d_sinks) {
  for (int64_t h = 0; h < problem.H; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < problem.B; ++b) {
      const int64_t first = contiguous_row(problem, b, h);
      for (int64_t row = first; row < first + problem.sequence(b).Tq; ++row) {
        if (rows.inverse_l[row] == 0 || rows.sink_weight[row] == 0) continue;
        sum -= static_cast<double>(rows.sink_weight[row]) * static_cast<double>(rows.final_delta[row]);
      }
    }
    store_from_double(d_sinks.dtype(), d_sinks.at(h * d_sinks.stride(0)), sum);
  }
}

template BackwardRows<float> backward_rows(const Problem&, const StateOperands&, const Operand&, const Operand&);
template BackwardRows<double> backward_rows(const Problem&, const StateOperands&, const Operand&, const Operand&);
template void store_sink_gradients(const Problem&, const BackwardRows<float>&, const MutableTensorView&);
template void store_sink_gradients(const Problem&, const BackwardRows<double>&, const MutableTensorView&);

}  // namespace qkv
