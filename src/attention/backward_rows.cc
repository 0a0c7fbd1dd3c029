// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_rows.h"

#include <array>
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

/// Sum of term(0) ... term(count - 1), in lanes: an order that vectors can keep.
template <class Term>
double sum_in_lanes(int64_t count, Term term) {
  constexpr int64_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  int64_t n = 0;
  for (; n + kLanes <= count; n += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[static_cast<size_t>(lane)] += term(n + lane);
  }
  for (; n < count; ++n) lanes[static_cast<size_t>(n % kLanes)] += term(n);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// dO . out of one row, in f64.
template <class T>
double row_product(const Operand& d_out, const Operand& out, int64_t b, int64_t h, int64_t row, int64_t columns) {
  const void* x = d_out.at(b, h, row, 0);
  const void* y = out.at(b, h, row, 0);
  if (d_out.stride[3] == 1 && out.stride[3] == 1 && out.dtype == DTypeOf<T>::value) {
    const T* o = static_cast<const T*>(y);
    if (d_out.dtype == DTypeOf<T>::value) {
      const T* d = static_cast<const T*>(x);
      return sum_in_lanes(columns, [=](int64_t c) { return static_cast<double>(d[c]) * static_cast<double>(o[c]); });
    }
    if (d_out.dtype == DType::bf16) {
      const BFloat16* d = static_cast<const BFloat16*>(x);
      return sum_in_lanes(columns,
                          [=](int64_t c) { return static_cast<double>(to_float(d[c])) * static_cast<double>(o[c]); });
    }
  }
  return sum_in_lanes(columns, [&](int64_t c) {
    return load_as<double>(d_out.dtype, d_out.at(b, h, row, c)) * load_as<double>(out.dtype, out.at(b, h, row, c));
  });
}

}  // namespace

template <class T>
BackwardRows<T> backward_rows(const Problem& problem, const StateOperands& state, const Operand& d_out,
                              const Operand& d_lse, bool anew) {
  const int64_t count = problem.rows();
  BackwardRows<T> rows{.d_out = d_out,
                       .m = AlignedArray<T>(count),
                       .inverse_l = AlignedArray<T>(count),
                       .inverse_l_low = AlignedArray<T>(count),
                       .sink_weight = AlignedArray<T>(count),
                       .whole_block = AlignedArray<int64_t>(count),
                       .delta = AlignedArray<T>(count),
                       .delta_low = AlignedArray<T>(count),
                       .estimate = AlignedArray<T>(count),
                       .final_delta = AlignedArray<T>(count)};
  const int64_t block_keys = backward_keys<T>(problem);
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
      const int64_t first_block = range.begin / block_keys;
      const bool is_whole = range.empty() || first_block == (range.end - 1) / block_keys;
      rows.whole_block[to] = is_whole ? first_block : -1;
      double product = row_product<T>(d_out, state.out, b, h, row, problem.Dv);
      if (is_whole || anew) {
        const T estimate = static_cast<T>(product);
        rows.estimate[to] = std::isfinite(estimate) ? estimate : T{0};
        product = 0;
      }
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

template BackwardRows<float> backward_rows(const Problem&, const StateOperands&, const Operand&, const Operand&, bool);
template BackwardRows<double> backward_rows(const Problem&, const StateOperands&, const Operand&, const Operand&, bool);
template void store_sink_gradients(const Problem&, const BackwardRows<float>&, const MutableTensorView&);
template void store_sink_gradients(const Problem&, const BackwardRows<double>&, const MutableTensorView&);

}  // namespace qkv
