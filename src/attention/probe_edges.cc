// SPDX-License-Identifier: Apache-2.0
//
// What removing one key j would do to out_i = sum r a v, r the factors of dropout (1 without):
//
//   value zeroed   -r_j a_j v_j
//   key hidden     out' - out, out' = (out - r_j a_j v_j) / (1 - a_j) being the same row without key j
//                  = a_j (out' - r_j v_j) = a_j / (1 - a_j) (out - r_j v_j)
//
// Only the heaviest key can have more than half of the weight. For it 1 - a_j cancels and so does out - v_j, so out' is
// summed over the other keys, relative to their own maximum; it stays a distribution where the others have weights of 0
// in the compute type, and is 0 where there are none. All other keys take the last form, whose 1 - a_j is half or more.
// A sink counts among the others: it has a share of the sum and no value.
//
// One item is one head: a pass over its keys for the scores of one row and one over its values.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/dropout.h"
#include "attention/probe_check.h"
#include "attention/probe_scores.h"
#include "attention/sink.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

struct EdgeResults {
  int64_t count = 0;
  int64_t* keys = nullptr;
  void* zero_value = nullptr;
  void* hide_key = nullptr;
};

template <class T>
class EdgeProbe {
 public:
  EdgeProbe(const Problem& problem, const BucketMap& buckets, int64_t longest)
      : problem_(problem),
        tiles_(problem, buckets, 1, forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)))),
        value_stride_(round_up(problem.Dv, tiles_.kernels().lanes)),
        scores_(longest),
        exponentials_(longest),
        values_(tiles_.block_keys() * value_stride_),
        value_(value_stride_),
        out_(problem.Dv),
        others_(problem.Dv) {}

  /// Query `query` of one head, which its sequence has.
  void run(int64_t b, int64_t h, int64_t query, const EdgeResults& results) {
    b_ = b;
    h_ = h;
    query_ = query;
    read_scores();
    rank_keys(results.count);
    if (visible_.empty()) return;
    sum_others();
    const int64_t edges = std::min(results.count, static_cast<int64_t>(visible_.size()));
    for (int64_t n = 0; n < edges; ++n) {
      const int64_t at = (b * problem_.H + h) * results.count + n;
      results.keys[at] = visible_[static_cast<size_t>(n)];
      store_edge(visible_[static_cast<size_t>(n)], static_cast<T*>(results.zero_value) + at * problem_.Dv,
                 static_cast<T*>(results.hide_key) + at * problem_.Dv);
    }
  }

 private:
  static constexpr T kHidden = -std::numeric_limits<T>::infinity();

  const Sequence& sequence() const { return problem_.sequence(b_); }

  void read_scores() {
    tiles_.load({b_, h_, query_, 1});
    std::fill_n(scores_.get(), sequence().Tk, kHidden);
    visible_.clear();
    undefined_ = makes_row_nan(sink_of<T>(problem_, h_));
    for (int64_t index = 0; index * tiles_.block_keys() < sequence().Tk; ++index) {
      const ScoreBlock<T> block = tiles_.tile(0, index);
      const int64_t end = std::min(block.end, sequence().Tk - block.first_key);
      for (int64_t c = block.begin; c < end; ++c) {
        const T score = block.row(0)[c];
        if (score == kHidden) continue;
        scores_[block.first_key + c] = score;
        visible_.push_back(block.first_key + c);
        undefined_ = undefined_ || !std::isfinite(score);
      }
    }
  }

  /// Brings the `count` keys of the largest scores, at least one, to the front of visible_, unless the row is NaN.
  void rank_keys(int64_t count) {
    if (undefined_ || visible_.empty()) return;
    const int64_t ranked = std::clamp<int64_t>(count, 1, static_cast<int64_t>(visible_.size()));
    std::partial_sort(visible_.begin(), visible_.begin() + ranked, visible_.end(), [this](int64_t a, int64_t b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
  }

  /// Relative to the largest score of the others, the sink included: their sum, their outputs, and the row's.
  void sum_others() {
    const int64_t top = visible_.front();
    const T top_score = scores_[top];
    const T sink = sink_of<T>(problem_, h_);
    scores_[top] = kHidden;
    T largest = *std::max_element(scores_.get(), scores_.get() + sequence().Tk);
    largest = std::max(largest, sink);
    const T shift = largest == kHidden ? T{0} : largest;
    for (int64_t j = 0; j < sequence().Tk; ++j) exponentials_[j] = scores_[j] - shift;
    tiles_.kernels().exp(exponentials_.get(), exponentials_.get(), sequence().Tk);
    const double sink_share = sink == kHidden   ? 0.0
                              : sink == largest ? 1.0
                                                : std::exp(static_cast<double>(sink) - static_cast<double>(shift));
    const double sum = sink_share + add_values(top);
    // The row: the top key's exponential and the others', relative to the larger of the two.
    const double distance = largest == kHidden ? std::numeric_limits<double>::infinity()
                                               : static_cast<double>(top_score) - static_cast<double>(largest);
    const double top_exponential = distance < 0 ? std::exp(distance) : 1.0;
    const double factor = distance > 0 ? std::exp(-distance) : 1.0;
    const double l = top_exponential + factor * sum;
    top_weight_ = top_exponential / l;
    factor_ = factor / l;
    load_value(top);
    const double kept = RowDropout(problem_, b_, h_, query_).factor(top);
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      out_[c] = factor_ * others_[c] + top_weight_ * kept * static_cast<double>(value_[c]);
      others_[c] = sum == 0 ? 0.0 : others_[c] / sum;
    }
  }

  /// Sums the outputs of all visible keys but the top one; returns the sum of their exponentials.
  double add_values(int64_t top) {
    const RowDropout dropout(problem_, b_, h_, query_);
    double sum = 0;
    std::fill_n(others_.get(), problem_.Dv, 0.0);
    for (int64_t first = 0; first < sequence().Tk; first += tiles_.block_keys()) {
      const int64_t keys = std::min(tiles_.block_keys(), sequence().Tk - first);
      tiles_.kernels().pack_rows(stored_values(first, keys), values_.get(), value_stride_, nullptr);
      for (int64_t j = first; j < first + keys; ++j) {
        if (j == top || scores_[j] == kHidden) continue;
        const double exponential = static_cast<double>(exponentials_[j]);
        sum += exponential;
        const double factor = exponential * dropout.factor(j);
        const T* value = values_.get() + (j - first) * value_stride_;
        for (int64_t c = 0; c < problem_.Dv; ++c) others_[c] += factor * static_cast<double>(value[c]);
      }
    }
    return sum;
  }

  StoredRows stored_values(int64_t first, int64_t keys) const {
    return stored_rows(problem_.v, b_, problem_.kv_head(h_), sequence().k_begin + first, keys, problem_.Dv);
  }
  void load_value(int64_t j) { tiles_.kernels().pack_rows(stored_values(j, 1), value_.get(), value_stride_, nullptr); }

  void store_edge(int64_t j, T* zero_value, T* hide_key) {
    load_value(j);
    const bool is_top = j == visible_.front();
    const double a = undefined_ ? std::numeric_limits<double>::quiet_NaN()
                     : is_top   ? top_weight_
                                : factor_ * static_cast<double>(exponentials_[j]);
    const double kept = RowDropout(problem_, b_, h_, query_).factor(j);
    for (int64_t c = 0; c < problem_.Dv; ++c) {
      const double value = kept * static_cast<double>(value_[c]);
      zero_value[c] = static_cast<T>(-a * value);
      hide_key[c] = static_cast<T>(is_top ? a * (others_[c] - value) : a / (1 - a) * (out_[c] - value));
    }
  }

  const Problem& problem_;
  ScoreTiles<T> tiles_;
  int64_t value_stride_;
  AlignedArray<T> scores_, exponentials_;  ///< by key; of the others relative to the largest of them
  AlignedArray<T> values_, value_;
  AlignedArray<double> out_, others_;  ///< [Dv]: the row's output, and the one without its top key
  std::vector<int64_t> visible_;
  int64_t b_ = 0, h_ = 0, query_ = 0;
  double top_weight_ = 0, factor_ = 0;  ///< a of the top key; a of another one over its exponential
  bool undefined_ = false;
};

template <class T>
void run_edges(const Problem& problem, int64_t query, const EdgeResults& results) {
  const int64_t longest = longest_keys(problem);
  const int64_t heads = problem.B * problem.H;
  const double work = static_cast<double>(longest * heads) * static_cast<double>(problem.D + problem.Dv);
  const int threads = useful_threads(problem, work);
  const BucketMap buckets(problem);
  std::vector<EdgeProbe<T>> workers;
  const int worker_count = parallel_workers(heads, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, longest);
  parallel_for(heads, threads, [&](int64_t item, int worker) {
    const int64_t b = item / problem.H;
    if (query >= problem.sequence(b).Tq) return;
    workers[static_cast<size_t>(worker)].run(b, item % problem.H, query, results);
  });
}

/// The axes of q without rows and columns, then `sizes`.
Dims edge_shape(const Problem& problem, int q_rank, std::initializer_list<int64_t> sizes) {
  Dims shape;
  if (problem.packed || q_rank >= 4) shape.push_back(problem.B);
  if (q_rank >= 3) shape.push_back(problem.H);
  for (const int64_t size : sizes) shape.push_back(size);
  return shape;
}

}  // namespace

AttentionEdges attention_edges(const TensorView& q, const TensorView& k, const TensorView& v,
                               const AttentionOptions& options, int64_t query, int64_t count) {
  const Problem problem = check_problem(q, k, v, options);
  check_edges(problem, query, count);
  const DType number = problem.is_f64() ? DType::f64 : DType::f32;
  AttentionEdges edges;
  edges.keys = Tensor(DType::i64, edge_shape(problem, q.rank(), {count}));
  edges.zero_value = Tensor(number, edge_shape(problem, q.rank(), {count, problem.Dv}));
  edges.hide_key = Tensor(number, edge_shape(problem, q.rank(), {count, problem.Dv}));
  const EdgeResults results{count, static_cast<int64_t*>(edges.keys.mutable_view().data()),
                            edges.zero_value.mutable_view().data(), edges.hide_key.mutable_view().data()};
  std::fill_n(results.keys, problem.B * problem.H * count, int64_t{-1});
  problem.is_f64() ? run_edges<double>(problem, query, results) : run_edges<float>(problem, query, results);
  return edges;
}

}  // namespace qkv
