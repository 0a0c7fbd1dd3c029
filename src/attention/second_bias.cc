// SPDX-License-Identifier: Apache-2.0
#include "attention/second_bias.h"

#include "attention/backward_plan.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// One tile of the gradient: every batch entry and head that shares it, in order.
template <class T>
class BiasTile {
 public:
  BiasTile(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands, const StripPlan& plan,
           const ScoreSums<T>& sums, const std::vector<SecondMeans<T>>& means)
      : problem_(problem),
        plan_(plan),
        sums_(sums),
        means_(means),
        tiles_(problem, buckets, operands, plan),
        total_(kStripRows * plan.stride) {}

  void run(int64_t bias_b, int64_t bias_h, int64_t first_row, int64_t first_key) {
    std::fill_n(total_.get(), kStripRows * plan_.stride, T{0});
    const int64_t rows = std::min(kStripRows, problem_.Tq - first_row);
    const int64_t last_b = sums_.bias_sums_b() ? problem_.B : bias_b + 1;
    const int64_t last_h = sums_.bias_sums_h() ? problem_.H : bias_h + 1;
    for (int64_t b = sums_.bias_sums_b() ? 0 : bias_b; b < last_b; ++b) {
      for (int64_t h = sums_.bias_sums_h() ? 0 : bias_h; h < last_h; ++h) add({b, h, first_row, rows}, first_key);
    }
    Operand columns = sums_.bias();
    columns.data = static_cast<const char*>(columns.at(bias_b, bias_h, 0, first_key));
    const int64_t keys = std::min(plan_.block_keys, problem_.Tk - first_key);
    for (int64_t r = 0; r < rows; ++r) {
      store_row<T>(columns, 0, 0, first_row + r, total_.get() + r * plan_.stride, keys, T{1});
    }
  }

 private:
  void add(const RowItem& item, int64_t first_key) {
    tiles_.load(item);
    const int64_t first = contiguous_row(problem_, item.b, item.h) + item.first_row;
    for (int64_t r = 0; r < item.rows; ++r) tiles_.set_means(r, means_[static_cast<size_t>(first + r)]);
    tiles_.strip().for_each_part(item, first_key, [&](StripPart<T> part) {
      tiles_.run_scores(part, false);
      const SecondTile<T> tile = tiles_.run_gradients(part);
      const T* g = tile.score_gradients();
      T* total = total_.get() + part.r * plan_.stride;
      for (int64_t r = 0; r < part.range.rows; ++r, total += plan_.stride, g += plan_.stride) {
        for (int64_t c = part.cover.begin; c < part.cover.end; ++c) total[c] += g[c];
      }
    });
  }

  const Problem& problem_;
  const StripPlan& plan_;
  const ScoreSums<T>& sums_;
  const std::vector<SecondMeans<T>>& means_;
  SecondTiles<T> tiles_;
  AlignedArray<T> total_;  ///< [strip rows, stride]
};

}  // namespace

template <class T>
StripPlan second_strip_plan(const Problem& problem) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  return {problem, kernels().attention<T>().panel_width, kSize, 4, (problem.softcap > 0 ? 6 : 4) * kSize};
}

template <class T>
void second_bias_gradient(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands,
                          const ScoreSums<T>& sums, const std::vector<SecondMeans<T>>& means) {
  StripPlan plan = second_strip_plan<T>(problem);
  plan.keep_nothing();
  const int64_t bias_heads = sums.bias_sums_h() ? 1 : problem.H;
  const int64_t strips = ceil_divide(problem.Tq, kStripRows);
  const int64_t blocks = ceil_divide(problem.Tk, plan.block_keys);
  const int64_t count = (sums.bias_sums_b() ? 1 : problem.B) * bias_heads * strips * blocks;
  if (count == 0) return;
  const int threads = useful_threads(problem, 2.5 * visible_work(problem));
  std::vector<BiasTile<T>> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, operands, plan, sums, means);
  parallel_for(count, threads, [&](int64_t index, int worker) {
    const int64_t head = index / blocks / strips;
    workers[static_cast<size_t>(worker)].run(head / bias_heads, head % bias_heads, index / blocks % strips * kStripRows,
                                             index % blocks * plan.block_keys);
  });
}

template StripPlan second_strip_plan<float>(const Problem&);
template StripPlan second_strip_plan<double>(const Problem&);
template void second_bias_gradient(const Problem&, const BucketMap&, const SecondOperands&, const ScoreSums<float>&,
                                   const std::vector<SecondMeans<float>>&);
template void second_bias_gradient(const Problem&, const BucketMap&, const SecondOperands&, const ScoreSums<double>&,
                                   const std::vector<SecondMeans<double>>&);

}  // namespace qkv
