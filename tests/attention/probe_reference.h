// SPDX-License-Identifier: Apache-2.0
//
// Probes by the definition: weights row by row from the plain loops of the reference, stored as they come, in the
// arithmetic T. And what rounding of the compute type may cost each of them, to first order: a relative error e of the
// scores' terms moves a_j by a_j (e_j - sum a e) and the entropy by -sum a_j (log a_j + H) e_j.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/check.h"
#include "attention/reference_head.h"
#include "problems.h"

namespace qkv::test {

/// Calls body(b, h, i, inputs of the head) for every row.
template <class T, class F>
void for_each_row(const Problem& problem, F body) {
  for (int64_t b = 0; b < problem.B; ++b) {
    for (int64_t hkv = 0; hkv < problem.Hkv; ++hkv) {
      const definition::HeadInputs<T> inputs(problem, b, hkv);
      for (int64_t h = hkv * problem.group(); h < (hkv + 1) * problem.group(); ++h) {
        for (int64_t i = 0; i < problem.sequence(b).Tq; ++i) body(b, h, i, inputs);
      }
    }
  }
}

/// Largest term of the score of a visible pair, at least 1.
template <class T>
double largest_score_term(const Problem& problem, const definition::HeadInputs<T>& inputs,
                          const definition::Row<T>& row, int64_t b, int64_t h, int64_t i, int64_t j) {
  double largest = 1;
  const auto raise = [&](double term) { largest = std::isfinite(term) ? std::max(largest, std::fabs(term)) : largest; };
  const int64_t distance = i + problem.sequence(b).offset - j;
  for (int64_t d = 0; d < problem.D; ++d) {
    raise(problem.scale * static_cast<double>(row.q[static_cast<size_t>(d)]) *
          static_cast<double>(inputs.k[static_cast<size_t>(j * problem.D + d)]));
  }
  raise(problem.scale * static_cast<double>(row.dot[static_cast<size_t>(j)]));
  if (problem.bias) raise(load_as<double>(problem.bias.dtype, problem.bias.at(b, h, i, j)));
  if (problem.slopes) {
    raise(load_as<double>(problem.slopes.dtype, problem.slopes.at(0, h, 0, 0)) * alibi_distance(distance));
  }
  if (problem.table) {
    const int64_t bucket = relative_bucket(distance, problem.table_buckets, problem.buckets);
    raise(load_as<double>(problem.table.dtype, problem.table.at(0, h, 0, bucket)));
  }
  return largest;
}

template <class T>
struct ProbeReference {
  // By row number (row-major [B, H, Tq] or [total_q, H]), and by key ([B, H, Tk] or [total_k, H]).
  std::vector<T> row_entropy, row_max, key_mass;
  std::vector<double> entropy_term, max_term, mass_term;  ///< what an ulp of the scores' terms may cost
  std::vector<T> weights;                                 ///< [rows, Tk]; 0 where hidden
  std::vector<double> weight_term;                        ///< [rows, Tk]
  std::vector<bool> empty;                                ///< [rows]

  explicit ProbeReference(const Problem& problem) : Tk_(problem.Tk) {
    const size_t rows = static_cast<size_t>(problem.rows());
    for (std::vector<T>* per_row : {&row_entropy, &row_max}) per_row->resize(rows);
    for (std::vector<double>* per_row : {&entropy_term, &max_term}) per_row->resize(rows);
    empty.resize(rows);
    weights.resize(rows * static_cast<size_t>(Tk_));
    weight_term.resize(weights.size());
    key_mass.resize(static_cast<size_t>((problem.packed ? 1 : problem.B) * problem.H * Tk_));
    mass_term.resize(key_mass.size());
    definition::Row<T> row(problem);
    for_each_row<T>(problem, [&](int64_t b, int64_t h, int64_t i, const definition::HeadInputs<T>& inputs) {
      definition::forward_row(problem, inputs, b, h, i, row);
      add_row(problem, inputs, row, b, h, i);
    });
  }

  size_t pair(int64_t number, int64_t j) const { return static_cast<size_t>(number * Tk_ + j); }

 private:
  void add_row(const Problem& problem, const definition::HeadInputs<T>& inputs, const definition::Row<T>& row,
               int64_t b, int64_t h, int64_t i) {
    const int64_t number = problem.row_index(b, h) + i * problem.row_step();
    const size_t n = static_cast<size_t>(number);
    empty[n] = row.visible.empty();
    double average = 0;
    for (const int64_t j : row.visible) {
      const T a = row.weight[static_cast<size_t>(j)];
      weights[pair(number, j)] = a;
      weight_term[pair(number, j)] = largest_score_term(problem, inputs, row, b, h, i, j);
      average += static_cast<double>(a) * weight_term[pair(number, j)];
      row_max[n] = std::max(row_max[n], a);
      if (a > 0) row_entropy[n] -= a * std::log(a);
    }
    for (const int64_t j : row.visible) {
      const double a = static_cast<double>(row.weight[static_cast<size_t>(j)]);
      double& term = weight_term[pair(number, j)];
      const double information = a > 0 ? -std::log(a) : 0;
      entropy_term[n] += a * (1 + information + static_cast<double>(row_entropy[n])) * (term + average);
      term = a * (term + average);
      max_term[n] = std::max(max_term[n], term);
      const int64_t key =
          problem.packed ? (problem.sequence(b).k_begin + j) * problem.H + h : (b * problem.H + h) * Tk_ + j;
      key_mass[static_cast<size_t>(key)] += row.weight[static_cast<size_t>(j)];
      mass_term[static_cast<size_t>(key)] += term;
    }
  }

  int64_t Tk_;
};

}  // namespace qkv::test
