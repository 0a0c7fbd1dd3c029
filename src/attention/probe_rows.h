// SPDX-License-Identifier: Apache-2.0
//
// What a row of scores amounts to, block by block: a summary merges with the next in key order, as (m, l, O) does.
//
//   m = max s,  rest = sum of e^(s - m) over all keys but the top one,  spread = sum e^(s - m) (m - s)
//
// The top key's e^0 = 1 stays outside of the sum, so that a row that is almost one key keeps the digits of what is
// left: with a sink's share g relative to M = max(m, sink), f = e^(m - M),
//   l = f (1 + rest) + g         log l = log1p(l - 1), the 1 of the largest left out of the sum
//   entropy = sum a (log l + M - s) = f ((1 + rest) (log l + M - m) + spread) / l
// No term is negative, so nothing cancels. Scores and exponentials are of the compute type, sums are f64.
#pragma once

#include <limits>

#include "attention/probe_scores.h"

namespace qkv {

template <class T>
struct RowSummary {
  T largest = -std::numeric_limits<T>::infinity();  ///< m, NaN aside
  int64_t top = -1;                                 ///< the first key that has it
  int64_t first = -1;                               ///< the first visible key; -1: the row is empty so far
  double rest = 0;
  double spread = 0;
  bool undefined = false;  ///< the row is NaN

  /// Merges with what comes after it.
  void merge(const RowSummary& next);
};

/// Summary of the scores of one row of a block. `scratch` holds 2 x block_keys.
template <class T>
RowSummary<T> summarize(const ScoreBlock<T>& block, int64_t r, const AttentionKernels<T>& kernels, T* scratch);

/// How a row's scores become weights: a = e^(s - shift) / l.
template <class T>
struct RowScale {
  T shift = 0;     ///< M
  double sum = 1;  ///< l; NaN for a NaN row
};
template <class T>
T weight(T exponential, const RowScale<T>& scale) {
  return static_cast<T>(static_cast<double>(exponential) / scale.sum);
}

template <class T>
struct RowResult {
  RowScale<T> scale;
  double entropy = 0;
  T largest_weight = 0;
  int64_t top = -1;
};
/// Closes a row: the sink (-inf: none) joins.
template <class T>
RowResult<T> finish_row(const RowSummary<T>& row, T sink, const AttentionKernels<T>& kernels);

/// exponentials[c] = e^(scores[c] - shift) on [begin, end); `differences` is scratch.
template <class T>
void exponentials_of_row(const T* scores, T shift, int64_t begin, int64_t end, const AttentionKernels<T>& kernels,
                         T* differences, T* exponentials);

/// Walks the key blocks of items of rows.
template <class T>
class RowProbe {
 public:
  RowProbe(const Problem& problem, const BucketMap& buckets)
      : problem_(problem),
        tiles_(problem, buckets, kProbeRows, forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)))),
        scratch_(2 * tiles_.block_keys()) {}

  /// Results of the item's rows, at most kProbeRows of them; valid until the next call.
  const std::vector<RowResult<T>>& run(const RowItem& item);
  /// Gives tiles of the item that ran last.
  ScoreTiles<T>& tiles() { return tiles_; }
  T* scratch() const { return scratch_.get(); }

 private:
  const Problem& problem_;
  ScoreTiles<T> tiles_;
  AlignedArray<T> scratch_;
  std::vector<RowSummary<T>> summaries_;
  std::vector<RowResult<T>> results_;
};

}  // namespace qkv
