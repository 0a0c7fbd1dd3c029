// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "attention/plan.h"
#include "attention/rows.h"
#include "attention/sink.h"
#include "kernels/attention_kernels.h"

namespace qkv {

/// Where results of a forward pass go. Arrays are indexed by row number (Problem::row_index); null or absent: not
/// wanted.
template <class T>
struct ForwardResults {
  Operand out;
  Operand lse;
  T* row_max = nullptr;
  T* row_sum = nullptr;
  T* wide_out = nullptr;  ///< [rows, Dv]
};

/// Row i of a head from row r of some triples: the sink joins, and what is wanted of m and l is stored. Returns what O
/// is to be multiplied by.
template <class T>
T finish_sums(const Problem& problem, const ForwardResults<T>& results, const RowItem& item, const Triples<T>& triples,
              int64_t r) {
  T m = triples.m[r];
  T l = triples.l[r];
  T weight_sum = triples.weight_sum != nullptr ? triples.weight_sum[r] : l;
  const T factor = merge_sink(problem, item.h, m, l, weight_sum);
  const int64_t i = item.first_row + r;
  if (results.lse) store_one<T>(results.lse, item.b, item.h, problem.sequence(item.b).q_begin + i, row_lse(m, l));
  if (results.row_max != nullptr) {
    const int64_t number = problem.row_index(item.b, item.h) + i * problem.row_step();
    results.row_max[number] = m;
    results.row_sum[number] = l;
  }
  return weight_sum == 0 ? T{0} : factor / weight_sum;
}

/// The rows of an item from their triples: the sink joins, O is divided by the sum of its weights and stored, and so is
/// what else is wanted.
template <class T>
void finish_rows(const Problem& problem, const ForwardResults<T>& results, const RowItem& item,
                 const Triples<T>& triples) {
  const AttentionKernels<T>& set = kernels().attention<T>();
  std::array<T, kForwardRows> factors;
  for (int64_t r = 0; r < item.rows; r += kForwardRows) {
    const int64_t rows = std::min(kForwardRows, item.rows - r);
    for (int64_t n = 0; n < rows; ++n) {
      factors[static_cast<size_t>(n)] = finish_sums(problem, results, item, triples, r + n);
    }
    const Triples<T> from = triples.from(r);
    const int64_t i = item.first_row + r;
    const int64_t row = problem.sequence(item.b).q_begin + i;
    set.store_rows(from.out, from.stride, factors.data(),
                   stored_rows(results.out, item.b, item.h, row, rows, problem.Dv));
    if (results.wide_out == nullptr) continue;
    T* wide_out = results.wide_out + (problem.row_index(item.b, item.h) + i * problem.row_step()) * problem.Dv;
    set.store_rows(from.out, from.stride, factors.data(),
                   {wide_out, DTypeOf<T>::value, problem.row_step() * problem.Dv, 1, rows, problem.Dv});
  }
}

}  // namespace qkv
