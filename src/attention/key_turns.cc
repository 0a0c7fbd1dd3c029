// SPDX-License-Identifier: Apache-2.0
#include "attention/key_turns.h"

#include <algorithm>

#include "attention/mask.h"
#include "qkv/support/checked.h"

namespace qkv {
namespace {

/// Sums of a span's keys: large enough for dozens of items, small beside any input that needs cutting.
constexpr int64_t kSpanBytes = int64_t{16} << 20;

}  // namespace

KeyTurns::KeyTurns(const Problem& problem, int64_t item_rows, int64_t block_keys)
    : problem_(problem), item_rows_(item_rows) {
  int64_t count = 0;
  for (const Sequence& sequence : problem.sequences) {
    Entry& entry = entries_.emplace_back();
    entry.first_turn = count;
    entry.items.resize(static_cast<size_t>(ceil_divide(sequence.Tk, block_keys)));
    count += problem.Hkv * static_cast<int64_t>(entry.items.size());
    for (int64_t first = 0; first < sequence.Tq; first += item_rows) {
      KeyRange any{sequence.Tk, 0};
      for (int64_t i = first; i < std::min(sequence.Tq, first + item_rows); ++i) {
        const KeyRange range = visible_range(problem, sequence, i);
        if (!range.empty()) any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
      }
      Blocks& met = entry.met.emplace_back();
      if (any.empty()) continue;
      met = {any.begin / block_keys, ceil_divide(any.end, block_keys)};
      const int64_t item = first / item_rows;
      for (int64_t block = met.first; block < met.last; ++block) {
        Blocks& items = entry.items[static_cast<size_t>(block)];
        if (items.last == 0) items.first = item;
        items.last = item + 1;
      }
    }
  }
  turns_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(count));
}

std::vector<KeySpan> cut_key_heads(const Problem& problem, int64_t item_rows, int64_t key_bytes) {
  std::vector<KeySpan> spans;
  for (int64_t head = 0; head < problem.B * problem.Hkv; ++head) {
    const int64_t b = head / problem.Hkv;
    const int64_t keys = problem.sequence(b).Tk;
    if (spans.empty() || (spans.back().keys + keys) * key_bytes > kSpanBytes) spans.emplace_back().first = head;
    KeySpan& span = spans.back();
    span.last = head + 1;
    span.first_key.push_back(span.keys);
    span.keys += keys;
    const int64_t Tq = problem.sequence(b).Tq;
    if (Tq == 0) continue;  // heads without rows cost no time: there may be any number of them
    const int64_t first_head = head % problem.Hkv * problem.group();
    for (int64_t h = first_head; h < first_head + problem.group(); ++h) {
      for (int64_t end = Tq; end > 0;) {
        const int64_t first = (end - 1) / item_rows * item_rows;
        span.items.push_back({b, h, first, end - first});
        end = first;
      }
    }
  }
  return spans;
}

}  // namespace qkv
