// SPDX-License-Identifier: Apache-2.0
//
// The forward pass: check, plan, tiles, finish.
//
// An item of work is a few hundred rows of one head. It walks the key blocks that any of its rows sees, in key order.
// Per block, rows go in groups of kForwardRows whose scores fit L2; each block yields a triple (m, l, O) from zero that
// is merged into the row's (attention_forward-inl.h). At the end the sink joins and O is divided by l, in pairs of bf16
// by the sum of the weights as they were rounded for O.
// Bytes moved: keys and values are packed once per head (again per item where a head exceeds the cache), queries read
// and outputs written once.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention/check.h"
#include "attention/check_view.h"
#include "attention/decode.h"
#include "attention/dropout.h"
#include "attention/forward_results.h"
#include "attention/key_cache.h"
#include "attention/pairs.h"
#include "attention/plan.h"
#include "attention/rows.h"
#include "attention/score_count.h"
#include "attention/score_tile.h"
#include "attention/terms.h"
#include "attention/tiling.h"
#include "kernels/attention_kernels.h"
#include "qkv/support/parallel.h"
#include "support/aligned.h"

namespace qkv {
namespace {

/// Rows of one item: long heads are packed again for each item, so those get more rows to share the packing.
constexpr int64_t kItemRows = 192;
constexpr int64_t kLongItemRows = 768;
/// Rows that a worker takes at a time where heads are short, so that it knows which is next.
constexpr int64_t kRunRows = 512;
constexpr int64_t kRunsPerWorker = 8;
/// Keys of a head at most that are asked for while the one before is computed.
constexpr int64_t kAheadKeys = 256;

template <class T, class E>
class ForwardWorker {
 public:
  ForwardWorker(const Problem& problem, const BucketMap& buckets, const ForwardResults<T>& results, int64_t item_rows)
      : problem_(problem),
        results_(results),
        kernels_(kernels().attention<T>()),
        block_keys_(forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)))),
        stride_(round_up(std::min(block_keys_, longest_keys(problem)), kernels_.panel_width)),
        planner_(problem, buckets, kernels_, kForwardRows, stride_),
        cache_(problem, kernels_, block_keys_, true),
        packed_q_(item_rows * width_in<T, E>(problem.D)),
        m_(item_rows),
        l_(item_rows),
        weight_sum_(kInPairs<T, E> ? item_rows : 0),
        out_(item_rows * cache_.value_stride()),
        scores_(kForwardRows * stride_),
        block_out_(kForwardTileRows * cache_.value_stride()),
        dropout_(problem, kernels_, kForwardRows, stride_) {}

  /// `next`: the item that this worker will do after this one, if that is known.
  void run(const RowItem& item, const RowItem* next) {
    load_queries(item);
    look_ahead(item, next);
    const Sequence& sequence = problem_.sequence(item.b);
    for (int64_t index = 0; index * block_keys_ < sequence.Tk; ++index) {
      for (int64_t r = 0; r < item.rows; r += kForwardRows) {
        run_tile(item, r, std::min(kForwardRows, item.rows - r), index);
      }
    }
    for (int64_t r = 0; r < item.rows; r += kForwardRows) {
      if (!met_keys_[static_cast<size_t>(r / kForwardRows)]) clear_rows(r, std::min(kForwardRows, item.rows - r));
    }
    const Triples<T> triples = {m_.get(), l_.get(), kInPairs<T, E> ? weight_sum_.get() : nullptr, out_.get(),
                                cache_.value_stride()};
    finish_rows(problem_, results_, item, triples);
  }

 private:
  void load_queries(const RowItem& item) {
    const StoredRows rows = query_rows(problem_.q, item, problem_.D);
    queries_ = packed_q_.get();
    if constexpr (!kInPairs<T, E>) {
      if (lies_as_packed<T>(rows, problem_.D) && problem_.scale >= 0) queries_ = static_cast<const T*>(rows.data);
    }
    if (queries_ == packed_q_.get()) pack_queries<T>(problem_, rows, packed_q_.get());
    met_keys_.assign(static_cast<size_t>(ceil_divide(item.rows, kForwardRows)), false);
  }

  StoredRows query_rows(const Operand& operand, const RowItem& item, int64_t columns) const {
    return stored_rows(operand, item.b, item.h, problem_.sequence(item.b).q_begin + item.first_row, item.rows, columns);
  }

  /// What the next item will read and write first, for the tiles of this one to ask for. Only of heads that are short:
  /// others take long, and fill L2 by themselves.
  void look_ahead(const RowItem& item, const RowItem* next) {
    ahead_ = {};
    if (next == nullptr) return;
    const Sequence& sequence = problem_.sequence(next->b);
    if (sequence.Tk > kAheadKeys) return;
    ahead_.rows[0] = query_rows(problem_.q, *next, problem_.D);
    ahead_.rows[1] = query_rows(results_.out, *next, problem_.Dv);
    const int64_t hkv = problem_.kv_head(next->h);
    if (problem_.cache != nullptr || (next->b == item.b && hkv == problem_.kv_head(item.h))) return;
    ahead_.rows[2] = stored_rows(problem_.k, next->b, hkv, sequence.k_begin, sequence.Tk, problem_.D);
    ahead_.rows[3] = stored_rows(problem_.v, next->b, hkv, sequence.k_begin, sequence.Tk, problem_.Dv);
  }

  /// The share of that for the tile at row r, one of those of the first key block.
  RowsAhead ahead_of_tile(const RowItem& item, int64_t r, int64_t index) const {
    RowsAhead share;
    if (index > 0) return share;
    const int64_t tiles = ceil_divide(item.rows, kForwardRows);
    const int64_t number = r / kForwardRows;
    for (size_t n = 0; n < std::size(ahead_.rows); ++n) {
      share.rows[n] = ahead_.rows[n];
      const int64_t first = ahead_.rows[n].rows * number / tiles;
      share.rows[n].rows = ahead_.rows[n].rows * (number + 1) / tiles - first;
      share.rows[n].data = static_cast<const char*>(ahead_.rows[n].data) +
                           first * ahead_.rows[n].row_stride * size_of(ahead_.rows[n].dtype);
    }
    return share;
  }

  /// Rows [r, r + rows) of the item against key block `index`.
  void run_tile(const RowItem& item, int64_t r, int64_t rows, int64_t index) {
    const int64_t first_key = index * block_keys_;
    const int64_t keys = std::min(block_keys_, problem_.sequence(item.b).Tk - first_key);
    const TileRange range{item.b, item.h, item.first_row + r, rows, first_key, keys};
    const TileCover<T> cover = planner_.plan(range);
    if (cover.empty()) return;
    const PackedKeyBlock<E>& block = cache_.block(item.b, problem_.kv_head(item.h), index);
    ForwardTile<T, E> tile{};
    const E* q = queries_ + r * width_in<T, E>(problem_.D);
    tile.score = score_tile<T, E>(problem_, cover, q, range.rows, block.keys, {scores_.get(), stride_});
    tile.v = block.values;
    tile.v_stride = cache_.value_stride();
    tile.v_nonfinite = block.nonfinite;
    tile.dropout = dropout_.decide(range, {cover.begin, cover.end});
    const auto group = static_cast<size_t>(r / kForwardRows);
    tile.first = !met_keys_[group];
    met_keys_[group] = true;
    tile.block_out = block_out_.get();
    tile.m = m_.get() + r;
    tile.l = l_.get() + r;
    if constexpr (kInPairs<T, E>) tile.weight_sum = weight_sum_.get() + r;
    tile.out = out_.get() + r * tile.v_stride;
    tile.out_stride = tile.v_stride;
    tile.ahead = ahead_of_tile(item, r, index);
    kernels_of<T, E>().forward_tile(tile);
    count_forward(tile.score, problem_.D, problem_.Dv);
  }

  /// The triples of rows that no tile has met.
  void clear_rows(int64_t r, int64_t rows) {
    std::fill_n(m_.get() + r, rows, -std::numeric_limits<T>::infinity());
    std::fill_n(l_.get() + r, rows, T{0});
    if constexpr (kInPairs<T, E>) std::fill_n(weight_sum_.get() + r, rows, T{0});
    std::fill_n(out_.get() + r * cache_.value_stride(), rows * cache_.value_stride(), T{0});
  }
  const Problem& problem_;
  const ForwardResults<T>& results_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  int64_t stride_;  ///< of scores: a block, or less where no sequence fills one
  TilePlanner<T> planner_;
  KeyCache<T, E> cache_;
  AlignedArray<E> packed_q_;
  const E* queries_ = nullptr;  ///< of the item: packed, or where they are stored
  RowsAhead ahead_;
  AlignedArray<T> m_, l_, weight_sum_, out_;
  AlignedArray<T> scores_, block_out_;
  TileDecisions<T> dropout_;
  std::vector<bool> met_keys_;  ///< of each group of kForwardRows: some tile has met them
};

template <class T, class E>
void run_forward_in(const Problem& problem, const ForwardResults<T>& results) {
  const AttentionKernels<T>& set = kernels().attention<T>();
  const int64_t block_keys = forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)));
  const int64_t item_rows = KeyCache<T, E>::holds_whole_heads(problem, set, block_keys) ? kItemRows : kLongItemRows;
  const int threads = useful_threads(problem, visible_work(problem));
  if (has_few_queries(problem)) return forward_few_queries<T, E>(problem, results, threads);
  const std::vector<RowItem> items = cut_rows(problem, item_rows, threads);
  if (items.empty()) return;
  int64_t longest = 0;
  for (const RowItem& item : items) longest = std::max(longest, item.rows);
  const BucketMap buckets(problem);
  const int64_t count = static_cast<int64_t>(items.size());
  std::vector<ForwardWorker<T, E>> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, results, longest);
  const int64_t run = std::max<int64_t>(1, std::min(kRunRows / longest, count / (kRunsPerWorker * worker_count)));
  parallel_for(ceil_divide(count, run), threads, [&](int64_t number, int worker) {
    const int64_t last = std::min(count, (number + 1) * run);
    const int64_t known = worker_count == 1 ? count : last;
    for (int64_t index = number * run; index < last; ++index) {
      const RowItem* item = items.data() + index;
      workers[static_cast<size_t>(worker)].run(*item, index + 1 < known ? item + 1 : nullptr);
    }
  });
}

template <class T>
void run_forward(const Problem& problem, const ForwardResults<T>& results) {
  if constexpr (std::is_same_v<T, float>) {
    if (uses_pairs(problem)) return run_forward_in<T, BFloat16Pair>(problem, results);
  }
  run_forward_in<T, T>(problem, results);
}

template <class T>
AttentionState forward_with_state(const Problem& problem, const Operand& out_operand, const MutableTensorView& out) {
  const Dims rows = problem.packed ? Dims{problem.Tq, problem.H} : Dims{problem.B, problem.H, problem.Tq};
  AttentionState state;
  state.row_max = Tensor(DTypeOf<T>::value, rows);
  state.row_sum = Tensor(DTypeOf<T>::value, rows);
  ForwardResults<T> results;
  results.out = out_operand;
  results.row_max = static_cast<T*>(state.row_max.mutable_view().data());
  results.row_sum = static_cast<T*>(state.row_sum.mutable_view().data());
  state.out = out;
  if (problem.dtype != DTypeOf<T>::value) {
    Dims shape = rows;
    shape.push_back(problem.Dv);
    state.wide_out = Tensor(DTypeOf<T>::value, shape);
    results.wide_out = static_cast<T*>(state.wide_out.mutable_view().data());
    state.out = state.wide_out.view();
  }
  run_forward<T>(problem, results);
  return state;
}

}  // namespace

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       const MutableTensorView& out, const MutableTensorView& lse) {
  const Problem problem = check_problem(q, k, v, options);
  const Operand out_operand = check_like(problem, out, "out", Rows::queries, problem.H, problem.Dv, q.rank());
  const Operand lse_operand = lse ? check_per_row(problem, lse, "lse", q.rank()) : Operand{};
  check_overlap({{"q", q}, {"k", k}, {"v", v}}, options, {{"out", out}, {"lse", lse}});
  if (problem.is_f64()) {
    run_forward<double>(problem, {.out = out_operand, .lse = lse_operand});
  } else {
    run_forward<float>(problem, {.out = out_operand, .lse = lse_operand});
  }
}

void attention_forward(const TensorView& q, const KeyValueCache& cache, const AttentionOptions& options,
                       const MutableTensorView& out, const MutableTensorView& lse) {
  const Problem problem = check_cached_problem(q, cache, options);
  const Operand out_operand = check_like(problem, out, "out", Rows::queries, problem.H, problem.Dv, q.rank());
  const Operand lse_operand = lse ? check_per_row(problem, lse, "lse", q.rank()) : Operand{};
  check_overlap({{"q", q}}, options, {{"out", out}, {"lse", lse}});
  if (problem.is_f64()) {
    run_forward<double>(problem, {.out = out_operand, .lse = lse_operand});
  } else {
    run_forward<float>(problem, {.out = out_operand, .lse = lse_operand});
  }
}

AttentionState attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const AttentionOptions& options, const MutableTensorView& out) {
  const Problem problem = check_problem(q, k, v, options);
  const Operand out_operand = check_like(problem, out, "out", Rows::queries, problem.H, problem.Dv, q.rank());
  check_overlap({{"q", q}, {"k", k}, {"v", v}}, options, {{"out", out}});
  return problem.is_f64() ? forward_with_state<double>(problem, out_operand, out)
                          : forward_with_state<float>(problem, out_operand, out);
}

void attention_lse(const AttentionState& state, const MutableTensorView& lse) {
  const TensorView& m = state.row_max.view();
  check_memory(lse, "lse");
  require_dtype(lse.dtype() == m.dtype(), "attention: lse must be ", name(m.dtype()), ", got ", name(lse.dtype()));
  const int skipped = m.rank() - lse.rank();
  bool fits = skipped >= 0;
  for (int axis = 0; fits && axis < m.rank(); ++axis) {
    fits = m.size(axis) == (axis < skipped ? 1 : lse.size(axis - skipped));
  }
  require(fits, "attention: lse must have the rows of the state, ", m.shape(), ", got ", lse.shape());
  require(!overlaps_itself(lse), "attention: lse overlaps itself, strides ", lse.strides());
  Tensor sums(m.dtype(), lse.shape());
  for (int64_t n = 0; n < m.elements(); ++n) {
    store_from_double(
        m.dtype(), sums.mutable_view().at(n),
        row_lse(load_as_double(m.dtype(), m.at(n)), load_as_double(m.dtype(), state.row_sum.view().at(n))));
  }
  copy(sums.view(), lse);
}

}  // namespace qkv
