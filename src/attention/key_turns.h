// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "attention/plan.h"
#include "attention/problem.h"

namespace qkv {

/// The wavefront of second order. What a key sums comes from many items of rows, on different threads, and is added
/// in one order: heads of a group in order, of each head the last item first, as under a causal mask it takes longest.
/// Each key block has a turn: the item that may add next. Items are handed out in that order, so that whoever waits is
/// waiting for an item that runs.
///
/// Masks move with the row: the items that meet a key block are a run of neighbours.
class KeyTurns {
 public:
  KeyTurns(const Problem& problem, int64_t item_rows, int64_t block_keys);

  struct Blocks {
    int64_t first = 0;
    int64_t last = 0;
  };
  /// Key blocks that some row of the item may see.
  Blocks blocks(const RowItem& item) const { return of(item.b).met[static_cast<size_t>(item.first_row / item_rows_)]; }
  int64_t key_blocks(int64_t b) const { return static_cast<int64_t>(of(b).items.size()); }
  /// No row sees any of its keys.
  bool is_blank(int64_t b, int64_t block) const {
    const Blocks& items = of(b).items[static_cast<size_t>(block)];
    return items.first >= items.last;
  }
  /// Waits until all earlier items have added their share.
  void wait(const RowItem& item, int64_t block) const {
    const std::atomic<int64_t>& turn = turn_of(item, block);
    const int64_t mine = rank(item, block);
    for (int spins = 0; turn.load(std::memory_order_acquire) != mine; ++spins) {
      if (spins > kSpins) std::this_thread::yield();
    }
  }
  /// Passes the turn on; true when this was the last share.
  bool pass(const RowItem& item, int64_t block) {
    const Blocks& items = of(item.b).items[static_cast<size_t>(block)];
    const int64_t next = rank(item, block) + 1;
    turn_of(item, block).store(next, std::memory_order_release);
    return next == (items.last - items.first) * problem_.group();
  }

 private:
  static constexpr int kSpins = 200;
  /// Of one batch entry, the same for all its heads.
  struct Entry {
    std::vector<Blocks> met;    ///< by item: its key blocks
    std::vector<Blocks> items;  ///< by key block: its items
    int64_t first_turn = 0;
  };
  const Entry& of(int64_t b) const { return entries_[static_cast<size_t>(b)]; }
  std::atomic<int64_t>& turn_of(const RowItem& item, int64_t block) const {
    const int64_t head = problem_.kv_head(item.h);
    return turns_[static_cast<size_t>(of(item.b).first_turn + head * key_blocks(item.b) + block)];
  }
  int64_t rank(const RowItem& item, int64_t block) const {
    const Blocks& items = of(item.b).items[static_cast<size_t>(block)];
    const int64_t before = item.h % problem_.group() * (items.last - items.first);
    return before + items.last - 1 - item.first_row / item_rows_;
  }

  const Problem& problem_;
  int64_t item_rows_;
  std::vector<Entry> entries_;
  std::unique_ptr<std::atomic<int64_t>[]> turns_;
};

/// Consecutive key/value heads (counted b * Hkv + hkv), at least one, whose sums fit a fixed budget; and their items in
/// the order of the turns.
struct KeySpan {
  int64_t first = 0;
  int64_t last = 0;
  std::vector<int64_t> first_key;  ///< of each head in the span's sums
  int64_t keys = 0;
  std::vector<RowItem> items;
};
std::vector<KeySpan> cut_key_heads(const Problem& problem, int64_t item_rows, int64_t key_bytes);

}  // namespace qkv
