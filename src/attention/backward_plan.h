// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "attention/problem.h"
#include "attention/tiling.h"

namespace qkv {

/// Keys of a backward block of the problem, computed in T.
template <class T>
int64_t backward_keys(const Problem& problem) {
  return backward_key_block(problem.D, problem.Dv, static_cast<int64_t>(sizeof(T)));
}
inline int64_t backward_keys(const Problem& problem) {
  return problem.is_f64() ? backward_keys<double>(problem) : backward_keys<float>(problem);
}

/// One key block of one key/value head: owns its dK and dV, and walks the query blocks of the head's group in order.
struct KeyBlockTask {
  int64_t b = 0;
  int64_t hkv = 0;
  int64_t index = 0;  ///< of the key block
};

/// The wavefront. Contributions to dQ of a query block come from many key blocks, on different threads, and must be
/// added in key order. Each query block has a turn: the key block that may add next. Tasks are handed out so that a
/// smaller key block of the same head always began earlier, hence a task that waits is waiting for one that runs.
class Wavefront {
 public:
  explicit Wavefront(const Problem& problem);

  /// Query blocks of a head.
  int64_t query_blocks(int64_t b) const { return ceil_divide(problem_.sequence(b).Tq, kBackwardRows); }
  /// True when some row of the query block may see the key block.
  bool meets(int64_t b, int64_t h, int64_t query_block, int64_t key_block) const {
    const Turn& turn = turns_[at(b, h, query_block)];
    return turn.first <= key_block && key_block < turn.last;
  }
  /// No row sees any key.
  bool is_blank(int64_t b, int64_t h, int64_t query_block) const {
    const Turn& turn = turns_[at(b, h, query_block)];
    return turn.first >= turn.last;
  }
  /// Waits until every smaller key block has added its share.
  void wait(int64_t b, int64_t h, int64_t query_block, int64_t key_block) const {
    const Turn& turn = turns_[at(b, h, query_block)];
    for (int spins = 0; turn.next.load(std::memory_order_acquire) != key_block; ++spins) {
      if (spins > kSpins) std::this_thread::yield();
    }
  }
  /// Passes the turn on; true when this was the last share.
  bool pass(int64_t b, int64_t h, int64_t query_block, int64_t key_block) {
    Turn& turn = turns_[at(b, h, query_block)];
    turn.next.store(key_block + 1, std::memory_order_release);
    return key_block + 1 == turn.last;
  }

 private:
  static constexpr int kSpins = 200;
  struct Turn {
    int64_t first = 0;  ///< key blocks [first, last) meet the query block
    int64_t last = 0;
    std::atomic<int64_t> next{0};
  };
  size_t at(int64_t b, int64_t h, int64_t query_block) const {
    return static_cast<size_t>(first_turn_[static_cast<size_t>(b)] + h * query_blocks(b) + query_block);
  }

  const Problem& problem_;
  std::vector<int64_t> first_turn_;  ///< per batch entry
  std::unique_ptr<Turn[]> turns_;
};

/// Rows of (b, h) in arrays in which the rows of one head are contiguous, packed or not.
inline int64_t contiguous_row(const Problem& problem, int64_t b, int64_t h) {
  const Sequence& sequence = problem.sequence(b);
  return (problem.packed ? sequence.q_begin : b * problem.Tq) * problem.H + h * sequence.Tq;
}

/// Consecutive key/value heads (counted b * Hkv + hkv) whose dQ sums fit a fixed budget, at least one.
struct HeadSpan {
  int64_t first = 0;
  int64_t last = 0;
  int64_t first_row = 0;  ///< contiguous rows
  int64_t rows = 0;
};
std::vector<HeadSpan> cut_heads(const Problem& problem, int64_t row_bytes);

/// The tasks of a span: key block 0 of every head, then key block 1, ...: heads are independent, so their tasks seldom
/// wait, and under a causal mask the long tasks come first.
std::vector<KeyBlockTask> key_block_tasks(const Problem& problem, const HeadSpan& span);

}  // namespace qkv
