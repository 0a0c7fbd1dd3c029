// SPDX-License-Identifier: Apache-2.0
//
// Masks compose by AND of words. Whatever hides a pair ends up in one bit, so the kernels know no masks, and a tile in
// which nothing is visible costs reading its masks: for a boolean one about as many cycles as it has cache lines.
#include "attention/mask_bits.h"

#include <algorithm>
#include <bit>

#include "qkv/support/checked.h"

namespace qkv {
namespace {

/// The words that hold the columns.
int64_t first_word(KeyRange columns) { return columns.begin / kWordBits; }
int64_t last_word(KeyRange columns) { return ceil_divide(columns.end, kWordBits); }

/// Rows are compared in groups of one register tile. Another tile costs reading its packed keys and values from L2, as
/// long as the arithmetic of about two rows, and its plan, about four rows of 64 columns.
constexpr int64_t kGroupRows = 6;
int64_t cut_cost(int64_t words) { return 2 * words + 4; }

/// Rows of terms ahead of the one that is read: rows of a caller's bias lie far apart, and the hardware does not
/// foresee where the next begins.
constexpr int64_t kRowsAhead = 4;

template <class T>
void ask_for(const T* row, int64_t columns) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(row + c);
}

void show_row(KeyRange shown, int64_t words, uint64_t* row) {
  for (int64_t w = 0; w < words; ++w) {
    row[w] = word_range(shown.begin - w * kWordBits, shown.end - w * kWordBits);
  }
}

}  // namespace

template <class T>
MaskBits<T>::MaskBits(const Problem& problem, const AttentionKernels<T>& kernels, int64_t rows, int64_t keys)
    : problem_(problem),
      kernels_(kernels),
      words_(ceil_divide(keys, kWordBits)),
      bits_(rows * words_),
      part_(words_),
      mask_row_(problem.mask && problem.mask.stride[3] != 1 ? words_ * kWordBits : 0),
      segments_(problem.query_segment ? words_ * kWordBits : 0) {}

template <class T>
void MaskBits<T>::show_all(int64_t rows, KeyRange columns, uint64_t* bits) const {
  if (rows == 0) return;
  show_row(columns, words_, bits);
  for (int64_t r = 1; r < rows; ++r) std::copy_n(bits, words_, bits + r * words_);
}

template <class T>
void MaskBits<T>::show_ranges(const TileRange& tile, KeyRange columns, uint64_t* bits) const {
  const Sequence& sequence = problem_.sequence(tile.b);
  for (int64_t r = 0; r < tile.rows; ++r) {
    const KeyRange range = visible_range(problem_, sequence, tile.first_row + r);
    show_row({std::max(columns.begin, range.begin - tile.first_key), std::min(columns.end, range.end - tile.first_key)},
             words_, bits + r * words_);
  }
}

template <class T>
void MaskBits<T>::hide_by_masks(const TileRange& tile, KeyRange columns, uint64_t* bits) {
  if (problem_.block_mask) hide_by_block(tile, columns, bits);
  if (problem_.query_segment) hide_by_segment(tile, columns, bits);
  if (problem_.mask) hide_by_mask(tile, columns, bits);
}

template <class T>
void MaskBits<T>::hide_by_mask(const TileRange& tile, KeyRange columns, uint64_t* bits) {
  const int64_t first = first_word(columns);
  const int64_t from = first * kWordBits;
  const int64_t count = columns.end - from;
  const int64_t step = problem_.mask.stride[3];
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (r == 0 || problem_.mask.stride[2] != 0) {
      const auto* mask =
          static_cast<const uint8_t*>(problem_.mask.at(tile.b, tile.h, tile.first_row + r, tile.first_key + from));
      if (step != 1) {
        for (int64_t c = 0; c < count; ++c) mask_row_[c] = mask[c * step];
        mask = mask_row_.get();
      }
      kernels_.nonzero_bits(mask, count, part_.get() + first);
    }
    uint64_t* row = bits + r * words_;
    for (int64_t w = first; w < last_word(columns); ++w) row[w] &= part_[w];
  }
}

template <class T>
void MaskBits<T>::hide_by_segment(const TileRange& tile, KeyRange columns, uint64_t* bits) {
  const int64_t first = first_word(columns);
  const int64_t from = first * kWordBits;
  const int64_t count = columns.end - from;
  for (int64_t c = 0; c < count; ++c) {
    segments_[c] = integer(problem_.key_segment, tile.b, 0, tile.first_key + from + c);
  }
  int64_t previous = 0;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t id = integer(problem_.query_segment, tile.b, tile.first_row + r, 0);
    if (r == 0 || id != previous) kernels_.equal_bits(segments_.get(), id, count, part_.get() + first);
    previous = id;
    uint64_t* row = bits + r * words_;
    for (int64_t w = first; w < last_word(columns); ++w) row[w] &= part_[w];
  }
}

template <class T>
void MaskBits<T>::hide_by_block(const TileRange& tile, KeyRange columns, uint64_t* bits) {
  const BlockShape& block = problem_.block;
  int64_t previous = -1;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const int64_t block_row = (tile.first_row + r) / block.queries;
    if (block_row != previous) {
      std::fill_n(part_.get(), words_, uint64_t{0});
      for (int64_t c = columns.begin; c < columns.end;) {
        const int64_t key = tile.first_key + c;
        // The block's last key may lie beyond 64 bits for huge blocks: compare by what is left of it.
        const int64_t left = block.keys - key % block.keys;
        const int64_t next = left < columns.end - c ? c + left : columns.end;
        if (truth(problem_.block_mask, tile.b, tile.h, block_row, key / block.keys)) {
          for (int64_t w = c / kWordBits; w < ceil_divide(next, kWordBits); ++w) {
            part_[w] |= word_range(c - w * kWordBits, next - w * kWordBits);
          }
        }
        c = next;
      }
      previous = block_row;
    }
    uint64_t* row = bits + r * words_;
    for (int64_t w = 0; w < words_; ++w) row[w] &= part_[w];
  }
}

template <class T>
bool MaskBits<T>::hide_by_terms(const T* terms, int64_t terms_stride, int64_t rows, KeyRange columns, uint64_t* bits) {
  const int64_t first = first_word(columns);
  const int64_t from = first * kWordBits;
  bool hidden = false;
  bool all = true;
  for (int64_t r = 0; r < rows; ++r) {
    if (r == 0 || terms_stride != 0) {
      if (r + kRowsAhead < rows) ask_for(terms + (r + kRowsAhead) * terms_stride + from, columns.end - from);
      kernels_.shown_bits(terms + r * terms_stride + from, columns.end - from, part_.get() + first);
      all = all_seen(part_.get(), 1, columns);
    }
    if (all) continue;
    hidden = true;
    uint64_t* row = bits + r * words_;
    for (int64_t w = first; w < last_word(columns); ++w) row[w] &= part_[w];
  }
  return hidden;
}

template <class T>
uint64_t MaskBits<T>::seen_words(const uint64_t* bits, int64_t rows) const {
  uint64_t words = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t w = 0; w < words_; ++w) words |= static_cast<uint64_t>(bits[r * words_ + w] != 0) << w;
  }
  return words;
}

template <class T>
int64_t MaskBits<T>::leading_rows(const uint64_t* bits, int64_t rows) {
  groups_.clear();
  for (int64_t r = 0; r < rows; r += kGroupRows) {
    groups_.push_back(seen_words(bits + r * words_, std::min(kGroupRows, rows - r)));
  }
  uint64_t seen = groups_[0];
  size_t end = 1;
  for (size_t next = 1; next < groups_.size(); end = next) {
    const uint64_t other = groups_[next];
    const size_t first = next;
    while (next < groups_.size() && groups_[next] == other) ++next;
    const int64_t together = std::popcount(seen | other);
    const int64_t saved = static_cast<int64_t>(end) * (together - std::popcount(seen)) +
                          static_cast<int64_t>(next - first) * (together - std::popcount(other));
    if (saved * kGroupRows > cut_cost(std::popcount(other))) break;
    seen |= other;
  }
  int64_t row = std::min(rows, static_cast<int64_t>(end) * kGroupRows);
  while (row < rows && (seen_words(bits + row * words_, 1) & ~seen) == 0) ++row;
  return row < rows ? row - row % 2 : row;
}

template <class T>
KeyRange MaskBits<T>::seen(const uint64_t* bits, int64_t rows) const {
  KeyRange columns;
  for (int64_t w = 0; w < words_; ++w) {
    uint64_t any = 0;
    for (int64_t r = 0; r < rows; ++r) any |= bits[r * words_ + w];
    if (any == 0) continue;
    if (columns.empty()) columns.begin = w * kWordBits + std::countr_zero(any);
    columns.end = (w + 1) * kWordBits - std::countl_zero(any);
  }
  return columns;
}

template <class T>
bool MaskBits<T>::all_seen(const uint64_t* bits, int64_t rows, KeyRange columns) const {
  for (int64_t w = first_word(columns); w < last_word(columns); ++w) {
    const uint64_t wanted = word_range(columns.begin - w * kWordBits, columns.end - w * kWordBits);
    for (int64_t r = 0; r < rows; ++r) {
      if ((bits[r * words_ + w] & wanted) != wanted) return false;
    }
  }
  return true;
}

template class MaskBits<float>;
template class MaskBits<double>;

}  // namespace qkv
