// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_bias.h"

#include <algorithm>
#include <vector>

#include "attention/backward_tiles.h"
#include "attention/plan.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// One tile of the gradient: every batch entry and head that shares it, in order.
template <class T, class E>
class BiasTile {
 public:
  BiasTile(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows, const ScoreSums<T>& sums)
      : problem_(problem),
        sums_(sums),
        tiles_(problem, buckets, rows, {.d_scores = true}),
        stride_(tiles_.scores_stride()),
        total_(kBackwardRows * stride_) {}

  void run(int64_t bias_b, int64_t bias_h, int64_t query_block, int64_t key_block) {
    std::fill_n(total_.get(), kBackwardRows * stride_, T{0});
    const int64_t first_b = sums_.bias_sums_b() ? 0 : bias_b;
    const int64_t last_b = sums_.bias_sums_b() ? problem_.B : bias_b + 1;
    const int64_t first_h = sums_.bias_sums_h() ? 0 : bias_h;
    const int64_t last_h = sums_.bias_sums_h() ? problem_.H : bias_h + 1;
    for (int64_t b = first_b; b < last_b; ++b) {
      for (int64_t h = first_h; h < last_h; ++h) {
        if (h == first_h || h % problem_.group() == 0) tiles_.load_keys(b, problem_.kv_head(h), key_block);
        tiles_.load_queries(b, h, query_block);
        for (const BackwardPart<T, E>& part : tiles_.run(false, false)) add(part);
      }
    }
    const TileRange& range = tiles_.range();
    for (int64_t r = 0; r < range.rows; ++r) {
      Operand columns = sums_.bias();
      columns.data = static_cast<const char*>(columns.at(bias_b, bias_h, 0, range.first_key));
      store_row<T>(columns, 0, 0, range.first_row + r, total_.get() + r * stride_, range.keys, T{1});
    }
  }

 private:
  void add(const BackwardPart<T, E>& part) {
    T* total = total_.get() + (part.range.first_row - tiles_.range().first_row) * stride_;
    const T* d_scores = part.d_scores();
    for (int64_t r = 0; r < part.range.rows; ++r, total += stride_, d_scores += stride_) {
      for (int64_t c = part.cover.begin; c < part.cover.end; ++c) total[c] += d_scores[c];
    }
  }

  const Problem& problem_;
  const ScoreSums<T>& sums_;
  BackwardTiles<T, E> tiles_;
  int64_t stride_;
  AlignedArray<T> total_;
};

}  // namespace

template <class T, class E>
void broadcast_bias_gradient(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows,
                             const ScoreSums<T>& sums) {
  const int64_t bias_heads = sums.bias_sums_h() ? 1 : problem.H;
  const int64_t heads = (sums.bias_sums_b() ? 1 : problem.B) * bias_heads;
  const int64_t query_blocks = ceil_divide(problem.Tq, kBackwardRows);
  const int64_t key_blocks = ceil_divide(problem.Tk, backward_keys<T>(problem));
  const int64_t count = heads * query_blocks * key_blocks;
  if (count == 0) return;
  const int threads = useful_threads(problem, visible_work(problem));
  const int worker_count = parallel_workers(count, threads);
  std::vector<BiasTile<T, E>> workers;
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, rows, sums);
  parallel_for(count, threads, [&](int64_t index, int worker) {
    const int64_t key_block = index % key_blocks;
    const int64_t query_block = index / key_blocks % query_blocks;
    const int64_t head = index / key_blocks / query_blocks;
    workers[static_cast<size_t>(worker)].run(head / bias_heads, head % bias_heads, query_block, key_block);
  });
}

template void broadcast_bias_gradient<float, float>(const Problem&, const BucketMap&, const BackwardRows<float>&,
                                                    const ScoreSums<float>&);
template void broadcast_bias_gradient<double, double>(const Problem&, const BucketMap&, const BackwardRows<double>&,
                                                      const ScoreSums<double>&);
template void broadcast_bias_gradient<float, BFloat16Pair>(const Problem&, const BucketMap&, const BackwardRows<float>&,
                                                           const ScoreSums<float>&);

}  // namespace qkv
