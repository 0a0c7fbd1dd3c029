// SPDX-License-Identifier: Apache-2.0
//
// Probes of the weights, by recomputation: 2 D operations and one exponential per visible pair and pass.
//
// Statistics take a pass over items of rows (probe_rows.h), which leaves the shift and sum of every row, 16 bytes each.
// Key mass takes a second one over items of keys: a worker owns some keys of one head and walks all its queries in
// order, so that each sum has one order. Tiles of weights likewise summarise their rows against all keys, then compute
// the scores of the tile again.
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/probe_check.h"
#include "attention/probe_rows.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// One scratch area per worker; body(item, worker's scratch).
template <class Worker, class Item, class Make, class Body>
void for_each_item(const std::vector<Item>& items, int threads, Make make, Body body) {
  const int64_t count = static_cast<int64_t>(items.size());
  if (count == 0) return;
  std::vector<Worker> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.push_back(make());
  parallel_for(count, threads, [&](int64_t index, int worker) {
    body(items[static_cast<size_t>(index)], workers[static_cast<size_t>(worker)]);
  });
}

struct StatisticOperands {
  Operand row_entropy, row_max, row_top, key_mass;
};

/// Stores what is wanted of an item's rows, and the scales for the second pass.
template <class T>
void store_rows(const Problem& problem, const StatisticOperands& to, const RowItem& item,
                const std::vector<RowResult<T>>& results, std::vector<RowScale<T>>& scales) {
  for (int64_t r = 0; r < item.rows; ++r) {
    const RowResult<T>& result = results[static_cast<size_t>(r)];
    const int64_t i = item.first_row + r;
    const int64_t row = problem.sequence(item.b).q_begin + i;
    if (to.row_entropy) store_one<T>(to.row_entropy, item.b, item.h, row, static_cast<T>(result.entropy));
    if (to.row_max) store_one<T>(to.row_max, item.b, item.h, row, result.largest_weight);
    if (to.row_top) *static_cast<int64_t*>(to.row_top.mutable_at(item.b, item.h, row, 0)) = result.top;
    if (scales.empty()) continue;
    scales[static_cast<size_t>(problem.row_index(item.b, item.h) + i * problem.row_step())] = result.scale;
  }
}

/// A block of keys of one query head.
struct KeyItem {
  int64_t b = 0;
  int64_t h = 0;
  int64_t index = 0;
};

/// Narrow blocks: more items to share out, and none waits long for the last.
constexpr int64_t kMassKeys = 128;

/// Sums weights over the queries of a head, key by key.
template <class T>
class MassProbe {
 public:
  MassProbe(const Problem& problem, const BucketMap& buckets, const std::vector<RowScale<T>>& scales)
      : problem_(problem),
        scales_(scales),
        tiles_(problem, buckets, kForwardRows, kMassKeys),
        scratch_(2 * kMassKeys),
        mass_(kMassKeys) {}

  void run(const KeyItem& item, const Operand& key_mass) {
    const Sequence& sequence = problem_.sequence(item.b);
    std::fill_n(mass_.get(), kMassKeys, 0.0);
    for (int64_t first = 0; first < sequence.Tq; first += kForwardRows) {
      tiles_.load({item.b, item.h, first, std::min(kForwardRows, sequence.Tq - first)});
      const ScoreBlock<T> block = tiles_.tile(0, item.index);
      if (block.empty()) continue;
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t number = problem_.row_index(item.b, item.h) + (first + r) * problem_.row_step();
        add_row(block, block.row(r), scales_[static_cast<size_t>(number)]);
      }
    }
    const int64_t first_key = item.index * kMassKeys;
    for (int64_t c = 0; c < std::min(kMassKeys, sequence.Tk - first_key); ++c) {
      store_one<T>(key_mass, item.b, item.h, sequence.k_begin + first_key + c, static_cast<T>(mass_[c]));
    }
  }

 private:
  void add_row(const ScoreBlock<T>& block, const T* scores, const RowScale<T>& scale) {
    if (std::isnan(scale.sum)) {
      for (int64_t c = block.begin; c < block.end; ++c) {
        if (scores[c] != -std::numeric_limits<T>::infinity()) mass_[c] = scale.sum;
      }
      return;
    }
    T* exponentials = scratch_.get() + kMassKeys;
    exponentials_of_row(scores, scale.shift, block.begin, block.end, tiles_.kernels(), scratch_.get(), exponentials);
    const double inverse = 1 / scale.sum;
    double* mass = mass_.get();
    for (int64_t c = block.begin; c < block.end; ++c) mass[c] += static_cast<double>(exponentials[c]) * inverse;
  }

  const Problem& problem_;
  const std::vector<RowScale<T>>& scales_;
  ScoreTiles<T> tiles_;
  AlignedArray<T> scratch_;
  AlignedArray<double> mass_;
};

template <class T>
void sum_over_queries(const Problem& problem, const BucketMap& buckets, int threads,
                      const std::vector<RowScale<T>>& scales, const Operand& key_mass) {
  std::vector<KeyItem> items;
  for (int64_t b = 0; b < problem.B; ++b) {
    for (int64_t h = 0; h < problem.H; ++h) {
      for (int64_t index = 0; index * kMassKeys < problem.sequence(b).Tk; ++index) items.push_back({b, h, index});
    }
  }
  for_each_item<MassProbe<T>>(
      items, threads, [&] { return MassProbe<T>(problem, buckets, scales); },
      [&](const KeyItem& item, MassProbe<T>& probe) { probe.run(item, key_mass); });
}

template <class T>
void run_statistics(const Problem& problem, const StatisticOperands& to) {
  const int threads = useful_threads(problem, visible_work(problem));
  const BucketMap buckets(problem);
  std::vector<RowScale<T>> scales(to.key_mass ? static_cast<size_t>(problem.rows()) : 0);
  for_each_item<RowProbe<T>>(
      cut_rows(problem, kProbeRows, threads), threads, [&] { return RowProbe<T>(problem, buckets); },
      [&](const RowItem& item, RowProbe<T>& probe) { store_rows<T>(problem, to, item, probe.run(item), scales); });
  if (to.key_mass) sum_over_queries<T>(problem, buckets, threads, scales, to.key_mass);
}

/// Items of rows that lie within `queries`.
std::vector<RowItem> cut_queries(const Problem& problem, Range queries, int threads) {
  std::vector<RowItem> items;
  for (const RowItem& item : cut_rows(problem, kProbeRows, threads)) {
    const int64_t first = std::max(item.first_row, queries.begin);
    const int64_t end = std::min(item.first_row + item.rows, queries.end);
    if (first < end) items.push_back({item.b, item.h, first, end - first});
  }
  return items;
}

/// The weights of one row of a block on the keys [begin, end) of the problem, with steps of `step` elements.
template <class T>
void store_weights(const ScoreBlock<T>& block, const T* scores, const RowScale<T>& scale,
                   const AttentionKernels<T>& kernels, T* scratch, Range keys, T* to, int64_t step) {
  T* exponentials = scratch + block.stride;
  exponentials_of_row(scores, scale.shift, block.begin, block.end, kernels, scratch, exponentials);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const int64_t c = j - block.first_key;
    const bool visible = c >= block.begin && c < block.end && scores[c] != -std::numeric_limits<T>::infinity();
    to[(j - keys.begin) * step] = visible ? weight(exponentials[c], scale) : T{0};
  }
}

template <class T>
void run_weights_item(const Problem& problem, const RowItem& item, Range queries, Range keys, const Operand& weights,
                      RowProbe<T>& probe) {
  const std::vector<RowResult<T>>& results = probe.run(item);
  const int64_t block_keys = probe.tiles().block_keys();
  for (int64_t first_key = keys.begin; first_key < keys.end;) {
    const int64_t index = first_key / block_keys;
    const Range part{first_key, std::min({keys.end, (index + 1) * block_keys, problem.Tk})};
    for (int64_t r = 0; r < item.rows; r += kForwardRows) {
      const ScoreBlock<T> block = probe.tiles().tile(r, index);
      for (int64_t n = 0; n < block.rows; ++n) {
        const int64_t row = item.first_row + r + n - queries.begin;
        T* to = static_cast<T*>(weights.mutable_at(item.b, item.h, row, part.begin - keys.begin));
        store_weights(block, block.row(n), results[static_cast<size_t>(r + n)].scale, probe.tiles().kernels(),
                      probe.scratch(), part, to, weights.stride[3]);
      }
    }
    first_key = part.end;
  }
}

template <class T>
void run_weights(const Problem& problem, Range queries, Range keys, const Operand& weights) {
  const double share =
      static_cast<double>(queries.end - queries.begin) / std::max(1.0, static_cast<double>(problem.Tq));
  const int threads = useful_threads(problem, share * visible_work(problem));
  const BucketMap buckets(problem);
  for_each_item<RowProbe<T>>(
      cut_queries(problem, queries, threads), threads, [&] { return RowProbe<T>(problem, buckets); },
      [&](const RowItem& item, RowProbe<T>& probe) {
        run_weights_item<T>(problem, item, queries, keys, weights, probe);
      });
}

}  // namespace

void attention_statistics(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options, const AttentionStatistics& statistics) {
  const Problem problem = check_problem(q, k, v, options);
  const DType number = problem.is_f64() ? DType::f64 : DType::f32;
  const auto check = [&](const MutableTensorView& view, const char* name, Rows rows, DType dtype) {
    return view ? check_per_row(problem, view, name, rows, dtype, q.rank()) : Operand{};
  };
  const StatisticOperands to{check(statistics.row_entropy, "row_entropy", Rows::queries, number),
                             check(statistics.row_max, "row_max", Rows::queries, number),
                             check(statistics.row_top, "row_top", Rows::queries, DType::i64),
                             check(statistics.key_mass, "key_mass", Rows::keys, number)};
  check_overlap({{"q", q}, {"k", k}, {"v", v}}, options,
                {{"row_entropy", statistics.row_entropy},
                 {"row_max", statistics.row_max},
                 {"row_top", statistics.row_top},
                 {"key_mass", statistics.key_mass}});
  if (!to.row_entropy && !to.row_max && !to.row_top && !to.key_mass) return;
  problem.is_f64() ? run_statistics<double>(problem, to) : run_statistics<float>(problem, to);
}

void attention_weights(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       Range queries, Range keys, const MutableTensorView& weights) {
  const Problem problem = check_problem(q, k, v, options);
  const Operand to = check_weights(problem, queries, keys, weights, q.rank());
  check_overlap({{"q", q}, {"k", k}, {"v", v}}, options, {{"weights", weights}});
  if (weights.elements() == 0) return;
  problem.is_f64() ? run_weights<double>(problem, queries, keys, to) : run_weights<float>(problem, queries, keys, to);
}

}  // namespace qkv
