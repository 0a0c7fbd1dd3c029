// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "attention/problem.h"

namespace qkv {

/// The sink of a head, a logit that joins the denominator only; -inf (no effect) without one.
template <class T>
T sink_of(const Problem& problem, int64_t h) {
  if (!problem.sinks) return -std::numeric_limits<T>::infinity();
  return load_as<T>(problem.sinks.dtype, problem.sinks.at(0, h, 0, 0));
}

/// Merges the triple (sink, 1, 0) into a row's (m, l); returns the factor its O is to be multiplied by.
template <class T>
T merge_sink(T sink, T& m, T& l) {
  if (sink == -std::numeric_limits<T>::infinity()) return T{1};
  const T larger = m < sink ? sink : m;
  const T row_factor = std::exp(m - larger);
  l = l * row_factor + std::exp(sink - larger);
  m = larger;
  return row_factor;
}

}  // namespace qkv
