// SPDX-License-Identifier: Apache-2.0
//
// The forward pass of few queries: what counts is that every key and value is read once, whatever reads it.
//
// All rows that share a key/value head, those of every query head of its group, meet a key block together. Up to
// kStoredRows of them take keys and values as they are stored (attention_decode-inl.h); more share one packing of the
// block. Where heads are fewer than threads need, an item of work is one key block of one head: its triples are
// computed by themselves and merged when the smaller blocks have been, so no bit depends on how the work was cut.
// Bytes moved: keys and values once. Memory: a triple per row, and per worker one for each row of a head.
#include "attention/decode.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "attention/dropout.h"
#include "attention/group_tile.h"
#include "attention/key_cache.h"
#include "attention/key_value_storage.h"
#include "attention/mask.h"
#include "attention/pairs.h"
#include "attention/score_count.h"
#include "attention/score_tile.h"
#include "attention/tiling.h"
#include "qkv/support/parallel.h"
#include "support/aligned.h"

namespace qkv {
namespace {

/// Rows that take keys as they are stored: two passes over a transposed square. From there on packing pays.
constexpr int64_t kStoredRows = 16;
/// Rows of a head that one packing of its key blocks serves at once: their outputs stay in L2 beside the block.
constexpr int64_t kSharedRows = 768;
/// Items each worker should find, so that all end at about the same time.
constexpr int64_t kItemsPerWorker = 8;

int64_t most_rows(const Problem& problem) {
  int64_t rows = 0;
  for (const Sequence& sequence : problem.sequences) rows = std::max(rows, sequence.Tq);
  return rows > kSharedRows ? rows : rows * problem.group();
}

/// Key blocks [first_block, last_block) of one key/value head.
struct HeadItem {
  int64_t b = 0;
  int64_t hkv = 0;
  int64_t first_block = 0;
  int64_t last_block = 0;
};

/// The triples of all rows, and whose turn it is to merge into those of a head.
template <class T>
class RunningTriples {
 public:
  RunningTriples(const Problem& problem, int64_t stride, bool has_weight_sums)
      : problem_(problem),
        stride_(stride),
        m_(problem.rows()),
        l_(problem.rows()),
        weight_sum_(has_weight_sums ? problem.rows() : 0),
        out_(problem.rows() * stride),
        turns_(std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(problem.B * problem.Hkv))) {
    std::fill_n(m_.get(), problem.rows(), -std::numeric_limits<T>::infinity());
  }
  void set_first_block(int64_t b, int64_t hkv, int64_t block) { turn(b, hkv).store(block, std::memory_order_relaxed); }
  /// Waits until every smaller block of the head has been merged. Items are handed out in order of their blocks, so
  /// whoever holds a smaller one is running.
  void wait(int64_t b, int64_t hkv, int64_t block) {
    for (int spins = 0; turn(b, hkv).load(std::memory_order_acquire) != block; ++spins) {
      if (spins > kSpins) std::this_thread::yield();
    }
  }
  void pass(int64_t b, int64_t hkv, int64_t block) { turn(b, hkv).store(block + 1, std::memory_order_release); }
  /// Of the rows of a group: head by head, each with its Tq rows.
  Triples<T> of_group(int64_t b, int64_t hkv) {
    const Sequence& sequence = problem_.sequence(b);
    const int64_t first = (problem_.packed ? sequence.q_begin : b * problem_.Tq) * problem_.H;
    const int64_t row = first + hkv * problem_.group() * sequence.Tq;
    T* weight_sum = weight_sum_.get() == nullptr ? nullptr : weight_sum_.get() + row;
    return {m_.get() + row, l_.get() + row, weight_sum, out_.get() + row * stride_, stride_};
  }

 private:
  static constexpr int kSpins = 200;
  std::atomic<int64_t>& turn(int64_t b, int64_t hkv) { return turns_[static_cast<size_t>(b * problem_.Hkv + hkv)]; }

  const Problem& problem_;
  int64_t stride_;
  AlignedArray<T> m_, l_, weight_sum_, out_;
  std::unique_ptr<std::atomic<int64_t>[]> turns_;
};

template <class T, class E>
class HeadWorker {
 public:
  HeadWorker(const Problem& problem, const BucketMap& buckets, int64_t rows)
      : problem_(problem),
        kernels_(kernels().attention<T>()),
        block_keys_(forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)))),
        stride_(round_up(std::min(block_keys_, longest_keys(problem)), kernels_.panel_width)),
        value_stride_(round_up(problem.Dv, kernels_.lanes)),
        planner_(problem, buckets, kernels_, takes_stored(rows) ? 0 : std::min(rows, kForwardRows),
                 takes_stored(rows) ? 0 : stride_),
        group_planner_(problem, buckets, kernels_, std::min(rows, kStoredRows), stride_),
        q_(rows * width_in<T, E>(problem.D)),
        m_(rows),
        l_(rows),
        weight_sum_(kInPairs<T, E> ? rows : 0),
        out_(rows * value_stride_),
        scores_(std::min(rows, kForwardRows) * stride_, kUninitialised),
        block_out_(kForwardTileRows * value_stride_, kUninitialised),
        dropout_(problem, kernels_, std::min(rows, kForwardRows), stride_) {}

  void load_queries(const HeadItem& item) {
    const Sequence& sequence = problem_.sequence(item.b);
    const int64_t elements = sequence.Tq * width_in<T, E>(problem_.D);
    for (int64_t g = 0; g < problem_.group(); ++g) {
      const int64_t h = item.hkv * problem_.group() + g;
      const StoredRows rows = stored_rows(problem_.q, item.b, h, sequence.q_begin, sequence.Tq, problem_.D);
      pack_queries<T>(problem_, rows, q_.get() + g * elements);
    }
  }

  /// The triples of all rows of the head against one key block; false when no row sees any of it.
  bool compute(const HeadItem& item, int64_t index) {
    const Sequence& sequence = problem_.sequence(item.b);
    const int64_t first_key = index * block_keys_;
    TileRange range{
        item.b, item.hkv * problem_.group(), 0, sequence.Tq, first_key, std::min(block_keys_, sequence.Tk - first_key)};
    if (takes_stored(range.rows * problem_.group())) return stored_tile(range, item, index);
    bool seen = false;
    for (int64_t g = 0; g < problem_.group(); ++g, ++range.h) {
      for (int64_t r = 0; r < sequence.Tq; r += kForwardRows) {
        range.first_row = r;
        range.rows = std::min(kForwardRows, sequence.Tq - r);
        seen = packed_tile(range, item.hkv, index, g * sequence.Tq + r) || seen;
      }
    }
    return seen;
  }

  /// Of the block computed last.
  Triples<T> triples() const {
    return {m_.get(), l_.get(), kInPairs<T, E> ? weight_sum_.get() : nullptr, out_.get(), value_stride_};
  }

 private:
  /// Whether so many rows of a head take keys and values as they are stored.
  bool takes_stored(int64_t rows) const {
    const bool contiguous = problem_.cache != nullptr || (problem_.k.stride[3] == 1 && problem_.v.stride[3] == 1);
    return contiguous && rows <= kStoredRows;
  }

  /// Rows [row, row + heads * range.rows) of the scratch, those of `heads` heads from range.h on.
  ForwardTile<T, E> forward_tile(const TileRange& range, const TileCover<T>& cover, int64_t row, int64_t heads) {
    ForwardTile<T, E> tile{.score = score_tile<T, E>(problem_, cover, q_.get() + row * width_in<T, E>(problem_.D),
                                                     heads * range.rows, nullptr, {scores_.get(), stride_}),
                           .v = nullptr,
                           .v_stride = value_stride_,
                           .v_nonfinite = {},
                           .dropout = {},
                           .first = true,
                           .block_out = block_out_.get(),
                           .m = m_.get() + row,
                           .l = l_.get() + row,
                           .weight_sum = kInPairs<T, E> ? weight_sum_.get() + row : nullptr,
                           .out = out_.get() + row * value_stride_,
                           .out_stride = value_stride_};
    TileRange of_head = range;
    of_head.h += heads;
    for (int64_t g = heads; g-- > 0;) {  // the first head's decisions are where those of all rows begin
      --of_head.h;
      tile.dropout = dropout_.decide(of_head, {cover.begin, cover.end}, g * range.rows);
    }
    return tile;
  }

  void forward_packed(ForwardTile<T, E>& tile, const TileRange& range, int64_t hkv, int64_t index) {
    if (!cache_) cache_.emplace(problem_, kernels_, block_keys_, true, 1);
    const PackedKeyBlock<E>& block = cache_->block(range.b, hkv, index);
    tile.score.keys = block.keys;
    tile.v = block.values;
    tile.v_nonfinite = block.nonfinite;
    kernels_of<T, E>().forward_tile(tile);
  }

  /// Where the keys after block `index` of an item begin: the item's next ones, or those of the next head.
  const void* next_keys(const HeadItem& item, int64_t index) const {
    int64_t hkv = item.hkv;
    if (++index == item.last_block) {
      index = item.first_block;
      if (++hkv == problem_.Hkv) return nullptr;
    }
    if (problem_.cache != nullptr) return problem_.cache->keys(problem_.cache->block(item.b, index), hkv);
    return problem_.k.at(item.b, hkv, problem_.sequence(item.b).k_begin + index * block_keys_, 0);
  }

  /// All rows of the group in one tile.
  bool stored_tile(const TileRange& range, const HeadItem& item, int64_t index) {
    const int64_t hkv = item.hkv;
    const TileCover<T> cover = group_planner_.plan(range, problem_.group());
    if (cover.empty()) return false;
    DecodeTile<T, E> tile{
        .block = forward_tile(range, cover, 0, problem_.group()), .keys = {}, .panels = {}, .values = {}};
    if (problem_.cache != nullptr) {
      const KeyValueBlock& block = problem_.cache->block(range.b, index);
      tile.panels = problem_.cache->panels(block, hkv);
      tile.values = problem_.cache->value_rows(block, hkv, range.keys);
    } else {
      const int64_t row = problem_.sequence(range.b).k_begin + range.first_key;
      tile.keys = stored_rows(problem_.k, range.b, hkv, row, range.keys, problem_.D);
      tile.values = stored_rows(problem_.v, range.b, hkv, row, range.keys, problem_.Dv);
    }
    tile.then = next_keys(item, index);
    if (!kernels_of<T, E>().decode_block(tile)) forward_packed(tile.block, range, hkv, index);
    count_forward(tile.block.score, problem_.D, problem_.Dv);
    return true;
  }

  /// Some rows of one head, whose triples begin at `row`.
  bool packed_tile(const TileRange& range, int64_t hkv, int64_t index, int64_t row) {
    const TileCover<T> cover = planner_.plan(range);
    if (cover.empty()) {
      std::fill_n(m_.get() + row, range.rows, -std::numeric_limits<T>::infinity());
      std::fill_n(l_.get() + row, range.rows, T{0});
      if constexpr (kInPairs<T, E>) std::fill_n(weight_sum_.get() + row, range.rows, T{0});
      std::fill_n(out_.get() + row * value_stride_, range.rows * value_stride_, T{0});
      return false;
    }
    ForwardTile<T, E> tile = forward_tile(range, cover, row, 1);
    forward_packed(tile, range, hkv, index);
    count_forward(tile.score, problem_.D, problem_.Dv);
    return true;
  }

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  int64_t stride_;  ///< of scores: a block, or less where no sequence fills one
  int64_t value_stride_;
  TilePlanner<T> planner_;
  GroupPlanner<T> group_planner_;
  AlignedArray<E> q_;
  AlignedArray<T> m_, l_, weight_sum_, out_, scores_, block_out_;
  TileDecisions<T> dropout_;
  std::optional<KeyCache<T, E>> cache_;
};

/// Key blocks that some row of the batch entry may see.
KeyRange visible_blocks(const Problem& problem, int64_t b, int64_t block_keys) {
  const Sequence& sequence = problem.sequence(b);
  KeyRange any{sequence.Tk, 0};
  for (int64_t i = 0; i < sequence.Tq; ++i) {
    const KeyRange range = visible_range(problem, sequence, i);
    if (!range.empty()) any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
  }
  return any.empty() ? KeyRange{} : KeyRange{any.begin / block_keys, ceil_divide(any.end, block_keys)};
}

/// All key blocks of a head in one item, or one in each when `split`: then smaller blocks of all heads come first, so
/// that nobody waits long for his turn.
std::vector<HeadItem> cut_heads(const Problem& problem, const std::vector<KeyRange>& blocks, bool split) {
  std::vector<HeadItem> items;
  items.reserve(static_cast<size_t>(problem.B * problem.Hkv));
  bool more = true;
  for (int64_t step = 0; more; ++step) {
    more = false;
    for (int64_t b = 0; b < problem.B; ++b) {
      const KeyRange range = blocks[static_cast<size_t>(b)];
      const int64_t first = range.begin + step;
      if (problem.sequence(b).Tq == 0 || (step > 0 && first >= range.end)) continue;
      const int64_t last = split ? std::min(first + 1, range.end) : range.end;
      for (int64_t hkv = 0; hkv < problem.Hkv; ++hkv) items.push_back({b, hkv, first, last});
      more = more || last < range.end;
    }
  }
  return items;
}

}  // namespace

bool has_few_queries(const Problem& problem) {
  const int64_t rows = most_rows(problem);
  if (rows == 0 || problem.H == 0 || rows > kSharedRows) return false;
  const auto element = static_cast<int64_t>(problem.is_f64() ? sizeof(double) : sizeof(float));
  // One block of keys for many rows: items of rows pack it once for the whole group.
  return rows <= kStoredRows || longest_keys(problem) > forward_key_block(problem.D, problem.Dv, element);
}

template <class T, class E>
void forward_few_queries(const Problem& problem, const ForwardResults<T>& results, int threads) {
  const int64_t block_keys = forward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)));
  const bool split = threads > 1 && problem.B * problem.Hkv < kItemsPerWorker * threads;
  RunningTriples<T> running(problem, round_up(problem.Dv, kernels().attention<T>().lanes), kInPairs<T, E>);
  std::vector<KeyRange> blocks;
  for (int64_t b = 0; b < problem.B; ++b) {
    blocks.push_back(visible_blocks(problem, b, block_keys));
    for (int64_t hkv = 0; hkv < problem.Hkv; ++hkv) running.set_first_block(b, hkv, blocks.back().begin);
  }
  const std::vector<HeadItem> items = cut_heads(problem, blocks, split);
  const int64_t count = static_cast<int64_t>(items.size());
  const BucketMap buckets(problem);
  std::vector<HeadWorker<T, E>> workers;
  const int worker_count = parallel_workers(count, threads);
  workers.reserve(static_cast<size_t>(worker_count));
  for (int w = 0; w < worker_count; ++w) workers.emplace_back(problem, buckets, most_rows(problem));
  parallel_for(count, threads, [&](int64_t number, int w) {
    const HeadItem& item = items[static_cast<size_t>(number)];
    HeadWorker<T, E>& worker = workers[static_cast<size_t>(w)];
    const int64_t Tq = problem.sequence(item.b).Tq;
    Triples<T> triples = running.of_group(item.b, item.hkv);
    const KeyRange all = blocks[static_cast<size_t>(item.b)];
    const bool is_only_block = all.end - all.begin == 1;
    worker.load_queries(item);
    for (int64_t index = item.first_block; index < item.last_block; ++index) {
      const bool seen = worker.compute(item, index);
      if (is_only_block && seen) {
        triples = worker.triples();  // merged with nothing they stay what they are
        break;
      }
      running.wait(item.b, item.hkv, index);
      if (seen) kernels().attention<T>().merge_rows(worker.triples(), triples, problem.group() * Tq);
      running.pass(item.b, item.hkv, index);
    }
    if (item.last_block != all.end) return;
    for (int64_t g = 0; g < problem.group(); ++g) {
      finish_rows<T>(problem, results, {item.b, item.hkv * problem.group() + g, 0, Tq}, triples.from(g * Tq));
    }
  });
}

template void forward_few_queries<float, float>(const Problem&, const ForwardResults<float>&, int);
template void forward_few_queries<double, double>(const Problem&, const ForwardResults<double>&, int);
template void forward_few_queries<float, BFloat16Pair>(const Problem&, const ForwardResults<float>&, int);

}  // namespace qkv
