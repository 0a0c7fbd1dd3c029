// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attention/problem.h"

namespace qkv {

/// Half-open range of keys.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};

/// Keys that causal, window and lengths together leave to query i: always one range. Empty: begin == end == 0.
///   causal        j <= i + offset
///   window        i + offset - left <= j <= i + offset + right
///   key lengths   j < key_length;   query lengths: none for i >= query_length
inline KeyRange visible_range(const Problem& problem, const Sequence& sequence, int64_t i) {
  if (i >= sequence.query_length) return {};
  const int64_t position = i + sequence.offset;  // the check keeps this within 64 bits
  int64_t begin = 0;
  int64_t end = sequence.key_length;
  if (problem.causal) end = std::min(end, position + 1);
  if (problem.window_left) begin = std::max(begin, position - *problem.window_left);
  if (problem.window_right) end = std::min(end, position + *problem.window_right + 1);
  return begin < end ? KeyRange{begin, end} : KeyRange{};
}

inline bool truth(const Operand& mask, int64_t b, int64_t h, int64_t i, int64_t j) {
  return *static_cast<const uint8_t*>(mask.at(b, h, i, j)) != 0;
}

inline int64_t integer(const Operand& ids, int64_t b, int64_t i, int64_t j) {
  const void* element = ids.at(b, 0, i, j);
  return ids.dtype == DType::i64 ? *static_cast<const int64_t*>(element) : *static_cast<const int32_t*>(element);
}

/// The rule of every mask for one pair, all but a bias of -inf. Masks compose: all must show the key.
inline bool mask_shows(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j) {
  const KeyRange range = visible_range(problem, problem.sequence(b), i);
  if (j < range.begin || j >= range.end) return false;
  if (problem.mask && !truth(problem.mask, b, h, i, j)) return false;
  if (problem.query_segment && integer(problem.query_segment, b, i, 0) != integer(problem.key_segment, b, 0, j)) {
    return false;
  }
  return !problem.block_mask || truth(problem.block_mask, b, h, i / problem.block.queries, j / problem.block.keys);
}

}  // namespace qkv
