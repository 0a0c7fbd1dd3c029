// SPDX-License-Identifier: Apache-2.0
//
// delta_i = sum_j a_ij dP_ij - dLSE_i about a number near it, h = dO . out:
//
//   sum_j a_ij dP_ij = h + sum_j a_ij (dP_ij - h) - h a_sink
//
// tile by tile, in the order of the backward's own sweep: a task is a key block, and rows add its shares by turns.
#include "attention/backward_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/backward_tiles.h"
#include "attention/plan.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

template <class T, class E>
class DeltaSums {
 public:
  DeltaSums(const Problem& problem, BackwardRows<T>& rows)
      : problem_(problem), rows_(rows), wavefront_(problem), sums_(problem.rows()) {}

  void run_task(const KeyBlockTask& task, BackwardTiles<T, E>& tiles) {
    bool loaded = false;
    for (int64_t h = task.hkv * problem_.group(); h < (task.hkv + 1) * problem_.group(); ++h) {
      for (int64_t block = 0; block < wavefront_.query_blocks(task.b); ++block) {
        if (!wavefront_.meets(task.b, h, block, task.index) || !has_open_rows(task.b, h, block)) continue;
        if (!loaded) tiles.load_keys(task.b, task.hkv, task.index);
        loaded = true;
        tiles.load_queries(task.b, h, block);
        const std::vector<BackwardPart<T, E>>& parts = tiles.run_delta_sums();
        wavefront_.wait(task.b, h, block, task.index);
        for (const BackwardPart<T, E>& part : parts) add(part);
        if (wavefront_.pass(task.b, h, block, task.index)) finish(task.b, h, block);
      }
    }
  }

 private:
  int64_t first_row(int64_t b, int64_t h, int64_t block) const {
    return contiguous_row(problem_, b, h) + block * kBackwardRows;
  }
  int64_t row_count(int64_t b, int64_t block) const {
    return std::min(kBackwardRows, problem_.sequence(b).Tq - block * kBackwardRows);
  }
  /// Some row of the block sees several key blocks. Theirs alone are missing.
  bool has_open_rows(int64_t b, int64_t h, int64_t block) const {
    const int64_t* whole = rows_.whole_block.get() + first_row(b, h, block);
    return std::any_of(whole, whole + row_count(b, block), [](int64_t key_block) { return key_block < 0; });
  }
  void add(const BackwardPart<T, E>& part) {
    double* sums = sums_.get() + contiguous_row(problem_, part.range.b, part.range.h) + part.range.first_row;
    for (int64_t r = 0; r < part.range.rows; ++r) sums[r] += static_cast<double>(part.tile.delta_sums[r]);
  }
  void finish(int64_t b, int64_t h, int64_t block) {
    const int64_t first = first_row(b, h, block);
    for (int64_t row = first; row < first + row_count(b, block); ++row) {
      if (rows_.whole_block[row] >= 0) continue;
      const auto high = static_cast<double>(rows_.estimate[row]);
      const double low = sums_[row] - high * static_cast<double>(rows_.sink_weight[row]) +
                         static_cast<double>(rows_.delta[row]);  // -dLSE so far
      const double delta = high + low;
      rows_.delta[row] = rows_.final_delta[row] = static_cast<T>(delta);
      rows_.delta_low[row] =
          std::isfinite(delta) ? static_cast<T>(delta - static_cast<double>(rows_.delta[row])) : T{0};
    }
  }

  const Problem& problem_;
  BackwardRows<T>& rows_;
  Wavefront wavefront_;
  AlignedArray<double> sums_;  ///< of sum a (dP - h), contiguous rows
};

}  // namespace

template <class T, class E>
void sum_deltas_anew(const Problem& problem, const BucketMap& buckets, BackwardRows<T>& rows) {
  DeltaSums<T, E> sums(problem, rows);
  const std::vector<HeadSpan> all = cut_heads(problem, 0);
  if (all.empty()) return;
  const std::vector<KeyBlockTask> tasks = key_block_tasks(problem, all.front());
  const auto count = static_cast<int64_t>(tasks.size());
  const int threads = useful_threads(problem, visible_work(problem));
  std::vector<BackwardTiles<T, E>> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, rows, BackwardNeeds{});
  parallel_for(count, threads, [&](int64_t index, int worker) {
    sums.run_task(tasks[static_cast<size_t>(index)], workers[static_cast<size_t>(worker)]);
  });
}

template void sum_deltas_anew<float, BFloat16Pair>(const Problem&, const BucketMap&, BackwardRows<float>&);

}  // namespace qkv
