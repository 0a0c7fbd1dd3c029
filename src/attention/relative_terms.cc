// SPDX-License-Identifier: Apache-2.0
#include "attention/relative_terms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/bias.h"

namespace qkv {
namespace {

/// A product or sum of finite numbers, however low: -inf hides by rule, never because T ran out of range.
template <class T>
T raised(T term) {
  return term < std::numeric_limits<T>::lowest() ? std::numeric_limits<T>::lowest() : term;
}

/// slope * -|distance| for the distances first, first - 1, ...
template <class T>
void fill_alibi(T slope, int64_t first, int64_t count, T* terms) {
  constexpr int64_t kExact = int64_t{1} << 24;  // integers up to it are exact in f32
  if (std::isfinite(slope) && std::abs(first) < kExact - count) {
    const auto start = static_cast<int32_t>(first);
    for (int32_t n = 0; n < static_cast<int32_t>(count); ++n) {
      terms[n] = raised(slope * -std::fabs(static_cast<T>(start - n)));
    }
    return;
  }
  for (int64_t n = 0; n < count; ++n) {
    const T product = slope * static_cast<T>(alibi_distance(first - n));
    terms[n] = std::isinf(slope) ? product : raised(product);
  }
}

}  // namespace

BucketMap::BucketMap(const Problem& problem) : problem_(problem) {
  if (!problem.table) return;
  int64_t longest = 1;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.Tq + sequence.Tk);
  reach_ = std::min(problem.buckets.max_distance, longest);
  buckets_.resize(static_cast<size_t>(2 * reach_ + 1));
  for (int64_t distance = -reach_; distance <= reach_; ++distance) {
    buckets_[static_cast<size_t>(distance + reach_)] =
        relative_bucket(distance, problem.table_buckets, problem.buckets);
  }
}

int64_t BucketMap::operator()(int64_t distance) const {
  // Beyond the largest distance of the rule buckets do not change any more.
  if (reach_ == problem_.buckets.max_distance) distance = std::clamp(distance, -reach_, reach_);
  if (distance < -reach_ || distance > reach_) {
    return relative_bucket(distance, problem_.table_buckets, problem_.buckets);
  }
  return buckets_[static_cast<size_t>(distance + reach_)];
}

template <class T>
T RelativeTerms<T>::table_term(int64_t distance) const {
  return load_as<T>(problem_.table.dtype, problem_.table.at(0, head_, 0, buckets_(distance)));
}

template <class T>
void RelativeTerms<T>::load_head(int64_t head) {
  if (head == head_) return;
  head_ = head;
  if (problem_.slopes) slope_ = load_as<T>(problem_.slopes.dtype, problem_.slopes.at(0, head, 0, 0));
  may_hide_ = problem_.slopes && std::isinf(slope_);
  if (!problem_.table) return;
  const int64_t reach = buckets_.reach();
  table_.resize(static_cast<size_t>(2 * reach + 1));
  for (int64_t distance = -reach; distance <= reach; ++distance) {
    table_[static_cast<size_t>(distance + reach)] = table_term(distance);
  }
  for (int64_t bucket = 0; bucket < problem_.table_buckets; ++bucket) {
    const T term = load_as<T>(problem_.table.dtype, problem_.table.at(0, head, 0, bucket));
    may_hide_ = may_hide_ || term == -std::numeric_limits<T>::infinity();
  }
}

template <class T>
bool RelativeTerms<T>::may_hide(int64_t head) {
  load_head(head);
  return may_hide_;
}

template <class T>
void RelativeTerms<T>::fill(int64_t head, int64_t first, int64_t count, T* terms) {
  load_head(head);
  if (problem_.slopes) {
    fill_alibi(slope_, first, count, terms);
  } else {
    std::fill_n(terms, count, T{0});
  }
  if (!problem_.table) return;
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  const int64_t reach = buckets_.reach();
  for (int64_t n = 0; n < count; ++n) {
    const int64_t distance = first - n;
    const bool near = -reach <= distance && distance <= reach;
    const T term = near ? table_[static_cast<size_t>(distance + reach)] : table_term(distance);
    terms[n] = terms[n] == kHidden || term == kHidden ? kHidden : raised(terms[n] + term);
  }
}

template class RelativeTerms<float>;
template class RelativeTerms<double>;

}  // namespace qkv
