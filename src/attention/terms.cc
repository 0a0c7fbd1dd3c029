// SPDX-License-Identifier: Apache-2.0
//
// Everything that bias and masks do to a tile becomes two arrays: terms that are added to the scores, and bits of the
// pairs that are visible. A tile that needs neither runs without; one without visible pairs does not run at all, and is
// known from its masks before any term is built.
//
// Terms are added to one another before they meet the score. Most are not built but pointed at: a bias in the compute
// type lies in the caller's memory, and terms of the distance are one array for all rows. A bias or table entry of -inf
// hides its pair: it becomes a bit like every mask.
#include "attention/terms.h"

#include <algorithm>

#include "qkv/support/checked.h"

namespace qkv {

template <class T>
TilePlanner<T>::TilePlanner(const Problem& problem, const BucketMap& buckets, const AttentionKernels<T>& kernels,
                            int64_t rows, int64_t keys)
    : problem_(problem),
      kernels_(kernels),
      stride_(round_up(keys, kWordBits)),
      masks_(problem, kernels, rows, keys),
      relative_(problem, buckets),
      terms_(problem.bias ? (rows + 1) * stride_ : 0),
      distances_(problem.slopes || problem.table ? rows + stride_ : 0) {}

/// Lengths, causal and window masks alone: which columns any row sees, and which all rows see.
template <class T>
TileCover<T> TilePlanner<T>::cover_of_ranges(const TileRange& tile) const {
  const Sequence& sequence = problem_.sequence(tile.b);
  const int64_t last_key = tile.first_key + tile.keys;
  KeyRange any{last_key, tile.first_key};
  KeyRange all{tile.first_key, last_key};
  const auto add_row = [&](int64_t i) {
    KeyRange range = visible_range(problem_, sequence, i);
    range.begin = std::max(range.begin, tile.first_key);
    range.end = std::min(range.end, last_key);
    all = {std::max(all.begin, range.begin), std::min(all.end, range.end)};
    if (range.empty()) return false;
    any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
    return true;
  };
  // Both ends of a range move one way with the row: where the first row and the last one see keys, they tell all.
  const bool first_sees = add_row(tile.first_row);
  const bool last_sees = add_row(tile.first_row + tile.rows - 1);
  for (int64_t r = 1; !(first_sees && last_sees) && r + 1 < tile.rows; ++r) add_row(tile.first_row + r);
  TileCover<T> cover{.rows = tile.rows};
  if (any.empty()) return cover;
  cover.begin = any.begin - tile.first_key;
  cover.end = any.end - tile.first_key;
  cover.begin -= cover.begin % kernels_.panel_width;
  cover.edge = all.begin - tile.first_key > cover.begin || all.end - tile.first_key < cover.end;
  if (cover.edge && !all.empty()) {
    cover.shared_begin = round_up(all.begin - tile.first_key, kernels_.lanes);
    cover.shared_end = std::max(cover.shared_begin, (all.end - tile.first_key) / kernels_.lanes * kernels_.lanes);
  }
  return cover;
}

template <class T>
TileCover<T> TilePlanner<T>::plan(const TileRange& tile, int64_t scratch_row) {
  return plan_rows(tile, scratch_row, true);
}

template <class T>
TileCover<T> TilePlanner<T>::plan_leading(const TileRange& tile, int64_t scratch_row) {
  return plan_rows(tile, scratch_row, false);
}

template <class T>
TileCover<T> TilePlanner<T>::plan_rows(const TileRange& tile, int64_t scratch_row, bool whole) {
  TileCover<T> cover = cover_of_ranges(tile);
  if (cover.empty()) return cover;
  uint64_t* bits = masks_.row(scratch_row);
  const KeyRange columns{cover.begin, cover.end};
  if (cover.edge) {
    masks_.show_ranges(tile, columns, bits);
    cover.visible = bits;
    cover.visible_stride = masks_.stride();
  }
  if (has_tensor_masks(problem_)) {
    if (!cover.edge) masks_.show_all(tile.rows, columns, bits);
    masks_.hide_by_masks(tile, columns, bits);
    if (!whole) cover.rows = masks_.leading_rows(bits, cover.rows);
    refine(cover, bits);
    if (cover.empty()) return cover;
  }
  set_terms(tile, cover, scratch_row);
  if (problem_.bias || relative_.may_hide(tile.h)) {
    if (cover.visible == nullptr) masks_.show_all(cover.rows, {cover.begin, cover.end}, bits);
    if (masks_.hide_by_terms(cover.terms, cover.terms_stride, cover.rows, {cover.begin, cover.end}, bits)) {
      refine(cover, bits);
    }
  }
  return cover;
}

/// The cover that bits leave.
template <class T>
void TilePlanner<T>::refine(TileCover<T>& cover, const uint64_t* bits) const {
  const KeyRange seen = masks_.seen(bits, cover.rows);
  cover.begin = seen.begin - seen.begin % kernels_.panel_width;
  cover.end = seen.end;
  cover.shared_begin = cover.shared_end = 0;
  cover.blank_words = masks_.blank_words(bits, cover.rows);
  const bool all = masks_.all_seen(bits, cover.rows, {cover.begin, cover.end});
  cover.visible = all ? nullptr : bits;
  cover.visible_stride = masks_.stride();
}

template <class T>
void TilePlanner<T>::set_terms(TileRange tile, TileCover<T>& cover, int64_t scratch_row) {
  tile.rows = cover.rows;
  if (problem_.slopes || problem_.table) {
    // Row r, column c finds its term at distances[c + rows - 1 - r].
    const int64_t last_row = tile.first_row + tile.rows - 1 + problem_.sequence(tile.b).offset;
    relative_.fill(tile.h, last_row - tile.first_key, tile.rows + tile.keys - 1, distances_.get());
    cover.terms = distances_.get() + tile.rows - 1;
    cover.terms_stride = -1;
  }
  if (problem_.bias) set_bias(tile, cover, scratch_row);
}

template <class T>
void TilePlanner<T>::set_bias(const TileRange& tile, TileCover<T>& cover, int64_t scratch_row) {
  const Operand& bias = problem_.bias;
  const T* distances = cover.terms;
  const bool is_contiguous = bias.dtype == DTypeOf<T>::value && bias.stride[3] == 1;
  // Kernels read whole vectors, also beyond the last column.
  const int64_t read_end = tile.first_key + round_up(cover.end, kernels_.lanes);
  if (is_contiguous && distances == nullptr && read_end <= problem_.sequence(tile.b).Tk) {
    cover.terms = static_cast<const T*>(bias.at(tile.b, tile.h, tile.first_row, tile.first_key));
    cover.terms_stride = bias.stride[2];
    return;
  }
  T* terms = terms_.get() + scratch_row * stride_;
  const int64_t from = cover.begin / kWordBits * kWordBits;
  const int64_t columns = cover.end - from;
  const bool one_row = bias.stride[2] == 0 && distances == nullptr;
  const int64_t rows = one_row ? 1 : tile.rows;
  kernels_.pack_rows({bias.at(tile.b, tile.h, tile.first_row, tile.first_key + from), bias.dtype, bias.stride[2],
                      bias.stride[3], rows, columns},
                     terms + from, stride_, nullptr);
  cover.terms = terms;
  cover.terms_stride = one_row ? 0 : stride_;
  if (distances == nullptr) return;
  for (int64_t r = 0; r < tile.rows; ++r) kernels_.add_terms(terms + r * stride_ + from, distances - r + from, columns);
}

template class TilePlanner<float>;
template class TilePlanner<double>;

}  // namespace qkv
