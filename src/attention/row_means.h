// SPDX-License-Identifier: Apache-2.0
//
// Means over the weights of a row, merged from tiles in key order. A tile gives sum a, its own mean (the center) and
// sum a (x - center). In f64 and about the first tile's center these lose nothing to what all keys of the row share;
// and the mean they give, sum a x / sum a, does not suffer from weights that add up to 1 only roughly.
#pragma once

#include <cmath>

#include "attention/problem.h"
#include "attention/sink.h"

namespace qkv {

/// A number of compute type with what rounding took from it.
template <class T>
struct TwoParts {
  T high = 0;
  T low = 0;
  TwoParts() = default;
  explicit TwoParts(double value) : high(static_cast<T>(value)) {
    low = std::isfinite(high) ? static_cast<T>(value - static_cast<double>(high)) : T{0};
  }
};

/// sum a, and sum a (x - center) of one quantity x.
struct WeightedSums {
  double weight = 0;
  double center = 0;  ///< of the first tile with any weight
  double centered = 0;

  bool is_empty() const { return weight == 0 && centered == 0; }
  void add(const WeightedSums& tile) {
    if (tile.is_empty()) return;
    if (is_empty()) center = tile.center;
    weight += tile.weight;
    centered += tile.centered + (tile.center - center) * tile.weight;
  }
  /// sum a x, when all weights together are `share`.
  double sum(double share) const { return weight == 0 ? centered : (center + centered / weight) * share; }
};

/// m, 1/l in two parts and the sink's weight of a row, from a state's m and l.
template <class T>
struct RowWeights {
  T m = 0;
  T inverse_l = 0;  ///< 0 for an empty row
  T inverse_l_low = 0;
  T sink_weight = 0;  ///< exp(sink - m) / l; 0 without a sink

  RowWeights() = default;
  RowWeights(const Problem& problem, int64_t h, T row_max, T l) : m(row_max) {
    inverse_l = l == 0 ? T{0} : 1 / l;
    inverse_l_low = l == 0 ? T{0} : std::fma(-l, inverse_l, T{1}) * inverse_l;
    sink_weight = qkv::sink_weight(problem, h, m, l);
  }
  /// What the keys' weights add up to; 1 minus the sink's is the better one unless little is left.
  double share(double weight) const { return sink_weight > T{0.5} ? weight : 1.0 - static_cast<double>(sink_weight); }
};

}  // namespace qkv
