// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/mask.h"
#include "attention/problem.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// A rectangle of pairs: rows [first_row, first_row + rows) of one head against keys [first_key, first_key + keys).
struct TileRange {
  int64_t b = 0;
  int64_t h = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_key = 0;
  int64_t keys = 0;
};

/// Masks whose shape only their tensors know.
inline bool has_tensor_masks(const Problem& problem) {
  return problem.mask || problem.query_segment || problem.block_mask;
}

inline constexpr int64_t kWordBits = 64;

/// Bits [begin, end) of a word, cut to its 64.
inline uint64_t word_range(int64_t begin, int64_t end) {
  begin = std::clamp<int64_t>(begin, 0, kWordBits);
  end = std::clamp<int64_t>(end, begin, kWordBits);
  const uint64_t ones = end - begin == kWordBits ? ~uint64_t{0} : (uint64_t{1} << (end - begin)) - 1;
  return begin == kWordBits ? 0 : ones << begin;
}

/// Which pairs of a tile are visible, a bit each: column c of row r at bit c % 64 of word c / 64 of the row. A column
/// counts from the tile's first key.
template <class T>
class MaskBits {
 public:
  /// For tiles of at most `rows` rows and `keys` keys.
  MaskBits(const Problem& problem, const AttentionKernels<T>& kernels, int64_t rows, int64_t keys);

  /// Bits from scratch row `row` on.
  uint64_t* row(int64_t row) const { return bits_.get() + row * words_; }
  int64_t stride() const { return words_; }

  /// Shows all pairs of the columns, no other.
  void show_all(int64_t rows, KeyRange columns, uint64_t* bits) const;
  /// Of these what causal masks, windows and lengths leave.
  void show_ranges(const TileRange& tile, KeyRange columns, uint64_t* bits) const;
  /// Hides by every other mask of the problem.
  void hide_by_masks(const TileRange& tile, KeyRange columns, uint64_t* bits);
  /// Hides the pairs whose term [rows, terms_stride] is -inf; returns whether there are any.
  bool hide_by_terms(const T* terms, int64_t terms_stride, int64_t rows, KeyRange columns, uint64_t* bits);

  /// How many leading rows make a tile of their own, because they see other words of columns than the rows that follow:
  /// an even number, or all.
  int64_t leading_rows(const uint64_t* bits, int64_t rows);
  /// Bit w: no row sees any column of word w.
  uint64_t blank_words(const uint64_t* bits, int64_t rows) const { return ~seen_words(bits, rows); }
  /// The columns that some row sees.
  KeyRange seen(const uint64_t* bits, int64_t rows) const;
  /// True when all rows see all of the columns.
  bool all_seen(const uint64_t* bits, int64_t rows, KeyRange columns) const;

 private:
  /// Bit w: some row sees a column of word w.
  uint64_t seen_words(const uint64_t* bits, int64_t rows) const;
  void hide_by_mask(const TileRange& tile, KeyRange columns, uint64_t* bits);
  void hide_by_segment(const TileRange& tile, KeyRange columns, uint64_t* bits);
  void hide_by_block(const TileRange& tile, KeyRange columns, uint64_t* bits);

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t words_;
  AlignedArray<uint64_t> bits_;     ///< [rows, words]
  AlignedArray<uint64_t> part_;     ///< [words]: of one row and mask
  AlignedArray<uint8_t> mask_row_;  ///< [words * 64]: a row of a mask that is not contiguous
  std::vector<uint64_t> groups_;    ///< seen words of every few rows
  AlignedArray<int64_t> segments_;  ///< [words * 64]: of the tile's keys
};

}  // namespace qkv
