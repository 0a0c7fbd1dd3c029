// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/problem.h"

namespace qkv {

/// relative_bucket of the distances that occur, looked up.
class BucketMap {
 public:
  explicit BucketMap(const Problem& problem);
  int64_t operator()(int64_t distance) const;
  /// Distances in [-reach, reach] are looked up.
  int64_t reach() const { return reach_; }

 private:
  const Problem& problem_;
  int64_t reach_ = 0;
  std::vector<int64_t> buckets_;
};

/// The terms that depend on the distance from key to query alone, ALiBi's and the relative table's: one array serves
/// all rows of a tile, shifted by one a row.
template <class T>
class RelativeTerms {
 public:
  RelativeTerms(const Problem& problem, const BucketMap& buckets) : problem_(problem), buckets_(buckets) {}

  /// The terms of `head` at the distances first, first - 1, ... to terms[0, count).
  void fill(int64_t head, int64_t first, int64_t count, T* terms);
  /// True when some term of the head may be -inf.
  bool may_hide(int64_t head);

 private:
  void load_head(int64_t head);
  T table_term(int64_t distance) const;

  const Problem& problem_;
  const BucketMap& buckets_;
  int64_t head_ = -1;
  T slope_ = 0;
  bool may_hide_ = false;
  std::vector<T> table_;  ///< of the distances -reach to reach
};

}  // namespace qkv
