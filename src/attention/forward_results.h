// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Row i of a head from row r of some triples: the sink joins, O is divided by the sum of its weights and stored, and
/// so is what else is wanted.
template <class T>
void finish_row(const Problem& problem, const ForwardResults<T>& results, int64_t b, int64_t h, int64_t i,
                const Triples<T>& triples, int64_t r) {
  T m = triples.m[r];
  T l = triples.l[r];
  T weight_sum = triples.weight_sum != nullptr ? triples.weight_sum[r] : l;
  const T* out = triples.out + r * triples.stride;
  const T factor = merge_sink(problem, h, m, l, weight_sum);
  const T inverse = weight_sum == 0 ? T{0} : factor / weight_sum;
  const int64_t stored_row = problem.sequence(b).q_begin + i;
  const int64_t number = problem.row_index(b, h) + i * problem.row_step();
  store_row<T>(results.out, b, h, stored_row, out, problem.Dv, inverse);
  if (results.lse) store_one<T>(results.lse, b, h, stored_row, row_lse(m, l));
  if (results.row_max != nullptr) {
    results.row_max[number] = m;
    results.row_sum[number] = l;
  }
  if (results.wide_out != nullptr) {
    for (int64_t c = 0; c < problem.Dv; ++c) results.wide_out[number * problem.Dv + c] = out[c] * inverse + T{0};
  }
}

}  // namespace qkv
