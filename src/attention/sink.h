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

/// NaN and +inf leave a row that sees keys no distribution.
template <class T>
bool makes_row_nan(T sink) {
  return std::isnan(sink) || sink == std::numeric_limits<T>::infinity();
}

/// Merges the triple (sink, 1, 0) into a row's (m, l), and into the sum of its rounded weights; returns the factor its
/// O is to be multiplied by. A row that sees no key becomes (sink, 1), whatever the sink is: out is 0 and lse the sink.
template <class T>
T merge_sink(const Problem& problem, int64_t h, T& m, T& l, T& weight_sum) {
  constexpr T kEmpty = -std::numeric_limits<T>::infinity();
  if (!problem.sinks) return T{1};
  const T sink = sink_of<T>(problem, h);
  if (m == kEmpty && l == 0) {  // a NaN row has this m too
    m = sink;
    l = weight_sum = 1;
    return T{0};
  }
  if (sink == kEmpty) return T{1};
  const T larger = m < sink ? sink : m;
  const T row_factor = std::exp(m - larger);
  const T share = std::exp(sink - larger);
  l = l * row_factor + share;
  weight_sum = weight_sum * row_factor + share;
  m = larger;
  return row_factor;
}

/// exp(sink - m) / l of a row that merge_sink left. With infinite or NaN m, l is 1 in a row that sees no key alone.
template <class T>
T sink_weight(const Problem& problem, int64_t h, T m, T l) {
  if (!problem.sinks) return T{0};
  return l == 1 && !std::isfinite(m) ? T{1} : std::exp(sink_of<T>(problem, h) - m) / l;
}

}  // namespace qkv
