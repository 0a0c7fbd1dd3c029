// SPDX-License-Identifier: Apache-2.0
#include "attention/probe_rows.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/sink.h"

namespace qkv {
namespace {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <class T>
T largest_of(const T* s, int64_t begin, int64_t end) {
  std::array<T, kStrands> largest;
  largest.fill(-kInfinity<T>);
  for (int64_t c = begin; c < end; c += kStrands) {
    for (size_t n = 0; n < kStrands; ++n) {
      const T x = s[c + static_cast<int64_t>(n)];
      largest[n] = x > largest[n] ? x : largest[n];
    }
  }
  return *std::max_element(largest.begin(), largest.end());
}

double sum_of(const std::array<double, kStrands>& strands) {
  double sum = 0;
  for (const double strand : strands) sum += strand;
  return sum;
}

/// rest and spread from x = s - m <= 0 and e = e^x. A hidden key has x = -inf and e = 0.
template <class T>
void add_others(const T* x, const T* e, int64_t begin, int64_t end, RowSummary<T>& row) {
  std::array<double, kStrands> rest{};
  std::array<double, kStrands> spread{};
  for (int64_t c = begin; c < end; c += kStrands) {
    for (size_t n = 0; n < kStrands; ++n) {
      const double exponential = static_cast<double>(e[c + static_cast<int64_t>(n)]);
      const double difference = static_cast<double>(x[c + static_cast<int64_t>(n)]);
      rest[n] += exponential;
      spread[n] += exponential == 0 ? 0.0 : -exponential * difference;
    }
  }
  row.rest = sum_of(rest);
  row.spread = sum_of(spread);
}

}  // namespace

template <class T>
void exponentials_of_row(const T* scores, T shift, int64_t begin, int64_t end, const AttentionKernels<T>& kernels,
                         T* differences, T* exponentials) {
  for (int64_t c = begin; c < end; ++c) differences[c] = scores[c] - shift;
  kernels.exp(differences + begin, exponentials + begin, end - begin);
}

template <class T>
RowSummary<T> summarize(const ScoreBlock<T>& block, int64_t r, const AttentionKernels<T>& kernels, T* scratch) {
  RowSummary<T> row;
  const T* s = block.row(r);
  int64_t c = block.begin;
  while (c < block.end && s[c] == -kInfinity<T>) ++c;
  if (c == block.end) return row;
  row.first = block.first_key + c;
  row.largest = largest_of(s, block.begin, block.end);
  if (!std::isfinite(row.largest)) {  // infinite scores, or nothing but NaN
    row.undefined = true;
    return row;
  }
  const int64_t top = std::find(s + c, s + block.end, row.largest) - s;
  row.top = block.first_key + top;
  T* differences = scratch;
  T* exponentials = scratch + block.stride;
  exponentials_of_row(s, row.largest, block.begin, block.end, kernels, differences, exponentials);
  exponentials[top] = 0;
  add_others(differences, exponentials, block.begin, block.end, row);
  row.undefined = std::isnan(row.rest);
  return row;
}

template <class T>
void RowSummary<T>::merge(const RowSummary& next) {
  if (next.first < 0) return;
  if (first < 0) {
    *this = next;
    return;
  }
  undefined = undefined || next.undefined;
  if (undefined) return;
  RowSummary smaller = next;
  if (next.largest > largest) {
    smaller = *this;
    largest = next.largest;
    top = next.top;
    rest = next.rest;
    spread = next.spread;
  }
  const double distance = static_cast<double>(largest) - static_cast<double>(smaller.largest);
  const double factor = std::exp(-distance);
  if (factor == 0) return;
  rest += factor * (1 + smaller.rest);
  spread += factor * (smaller.spread + distance * (1 + smaller.rest));
}

template <class T>
RowResult<T> finish_row(const RowSummary<T>& row, T sink, const AttentionKernels<T>& kernels) {
  RowResult<T> result;
  if (row.first < 0) return result;
  if (row.undefined || makes_row_nan(sink)) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    return {{T{0}, kNan}, kNan, kNan, row.first};
  }
  const T shift = std::max(row.largest, sink);
  const T below = row.largest - shift;
  T top_exponential = 1;
  kernels.exp(&below, &top_exponential, 1);
  const double factor = static_cast<double>(top_exponential);
  const double keys = factor * (1 + row.rest);
  const bool sink_leads = sink > row.largest;
  const double sink_share = sink_leads ? 1.0 : std::exp(static_cast<double>(sink) - static_cast<double>(shift));
  const double without_largest = sink_leads ? keys : row.rest + sink_share;
  const double l = 1 + without_largest;
  result.scale = {shift, l};
  result.top = row.top;
  result.largest_weight = weight(top_exponential, result.scale);
  if (factor == 0) return result;
  const double distance = static_cast<double>(shift) - static_cast<double>(row.largest);
  result.entropy = (keys * (std::log1p(without_largest) + distance) + factor * row.spread) / l;
  return result;
}

template <class T>
const std::vector<RowResult<T>>& RowProbe<T>::run(const RowItem& item) {
  summaries_.assign(static_cast<size_t>(item.rows), {});
  tiles_.load(item);
  for (int64_t index = 0; index * tiles_.block_keys() < problem_.sequence(item.b).Tk; ++index) {
    for (int64_t r = 0; r < item.rows; r += kForwardRows) {
      const ScoreBlock<T> block = tiles_.tile(r, index);
      if (block.empty()) continue;
      for (int64_t n = 0; n < block.rows; ++n) {
        summaries_[static_cast<size_t>(r + n)].merge(summarize(block, n, tiles_.kernels(), scratch_.get()));
      }
    }
  }
  const T sink = sink_of<T>(problem_, item.h);
  results_.clear();
  for (const RowSummary<T>& row : summaries_) results_.push_back(finish_row(row, sink, tiles_.kernels()));
  return results_;
}

#define QKV_INSTANTIATE(T)                                                                              \
  template struct RowSummary<T>;                                                                        \
  template void exponentials_of_row(const T*, T, int64_t, int64_t, const AttentionKernels<T>&, T*, T*); \
  template RowSummary<T> summarize(const ScoreBlock<T>&, int64_t, const AttentionKernels<T>&, T*);      \
  template RowResult<T> finish_row(const RowSummary<T>&, T, const AttentionKernels<T>&);                \
  template class RowProbe<T>;
QKV_INSTANTIATE(float)
QKV_INSTANTIATE(double)
#undef QKV_INSTANTIATE

}  // namespace qkv
