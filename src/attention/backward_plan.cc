// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_plan.h"

#include <algorithm>

#include "attention/mask.h"

namespace qkv {
namespace {

/// dQ sums of a span in the compute type: large enough for dozens of tasks, small beside any input that needs cutting.
constexpr int64_t kSpanBytes = int64_t{4} << 20;

}  // namespace

Wavefront::Wavefront(const Problem& problem) : problem_(problem) {
  const int64_t keys = backward_keys(problem);
  int64_t count = 0;
  for (int64_t b = 0; b < problem.B; ++b) {
    first_turn_.push_back(count);
    count += problem.H * query_blocks(b);
  }
  turns_ = std::make_unique<Turn[]>(static_cast<size_t>(count));
  for (int64_t b = 0; b < problem.B; ++b) {
    const Sequence& sequence = problem.sequence(b);
    for (int64_t block = 0; block < query_blocks(b); ++block) {
      KeyRange any{sequence.Tk, 0};
      for (int64_t i = block * kBackwardRows; i < std::min(sequence.Tq, (block + 1) * kBackwardRows); ++i) {
        const KeyRange range = visible_range(problem, sequence, i);
        if (!range.empty()) any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
      }
      if (any.empty()) continue;
      for (int64_t h = 0; h < problem.H; ++h) {
        Turn& turn = turns_[at(b, h, block)];
        turn.first = any.begin / keys;
        turn.last = ceil_divide(any.end, keys);
        turn.next.store(turn.first, std::memory_order_relaxed);
      }
    }
  }
}

std::vector<HeadSpan> cut_heads(const Problem& problem, int64_t row_bytes) {
  std::vector<HeadSpan> spans;
  for (int64_t head = 0; head < problem.B * problem.Hkv; ++head) {
    const int64_t b = head / problem.Hkv;
    const int64_t rows = problem.group() * problem.sequence(b).Tq;
    if (spans.empty() || (spans.back().rows + rows) * row_bytes > kSpanBytes) {
      spans.push_back({head, head, contiguous_row(problem, b, head % problem.Hkv * problem.group()), 0});
    }
    spans.back().last = head + 1;
    spans.back().rows += rows;
  }
  return spans;
}

std::vector<KeyBlockTask> key_block_tasks(const Problem& problem, const HeadSpan& span) {
  const int64_t keys = backward_keys(problem);
  std::vector<KeyBlockTask> tasks;
  bool more = true;
  for (int64_t index = 0; more; ++index) {
    more = false;
    for (int64_t head = span.first; head < span.last; ++head) {
      const int64_t b = head / problem.Hkv;
      if (index * keys >= problem.sequence(b).Tk) continue;
      tasks.push_back({b, head % problem.Hkv, index});
      more = true;
    }
  }
  return tasks;
}

}  // namespace qkv
