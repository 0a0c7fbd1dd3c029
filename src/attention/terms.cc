// SPDX-License-Identifier: Apache-2.0
//
// Everything that masks and bias do to a tile becomes one array of additive terms, in which -inf hides. A tile that
// needs no such array (all pairs visible, nothing added) runs without; one without visible pairs does not run at all.
// Terms are added to one another before they meet the score.
#include "attention/terms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/bias.h"
#include "qkv/support/checked.h"

namespace qkv {
namespace {

template <class T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// A sum of finite numbers, however low: -inf hides by rule, never because T ran out of range.
template <class T>
T raised(T sum) {
  return sum < std::numeric_limits<T>::lowest() ? std::numeric_limits<T>::lowest() : sum;
}

/// a + b where -inf in either hides, whatever the other is.
template <class T>
T sum_of_terms(T a, T b) {
  return a == kHidden<T> || b == kHidden<T> ? kHidden<T> : raised(a + b);
}

/// ALiBi and the relative table depend on i - j alone: one array serves every row of the tile, shifted by one a row.
/// Row r, column c finds its term at distances[c + rows - 1 - r].
template <class T>
void fill_distances(const Problem& problem, const BucketMap& buckets, const TileRange& tile, T* distances) {
  const int64_t offset = problem.sequence(tile.b).offset;
  const T slope = problem.slopes ? load_as<T>(problem.slopes.dtype, problem.slopes.at(0, tile.h, 0, 0)) : T{0};
  const int64_t last_row = tile.first_row + tile.rows - 1;
  for (int64_t n = 0; n < tile.rows + tile.keys - 1; ++n) {
    const int64_t distance = last_row + offset - (tile.first_key + n);
    T term = 0;
    if (problem.slopes) {
      const T product = slope * static_cast<T>(alibi_distance(distance));
      term = std::isinf(slope) ? product : raised(product);
    }
    if (problem.table) {
      term = sum_of_terms(term, load_as<T>(problem.table.dtype, problem.table.at(0, tile.h, 0, buckets(distance))));
    }
    distances[n] = term;
  }
}

template <class T, class Stored>
void copy_bias(const Stored* bias, int64_t step, int64_t count, T* row) {
  if (step == 1) {
    for (int64_t c = 0; c < count; ++c) row[c] = load_as<T>(DTypeOf<Stored>::value, bias + c);
  } else {
    for (int64_t c = 0; c < count; ++c) row[c] = load_as<T>(DTypeOf<Stored>::value, bias + c * step);
  }
}

/// Bias of one row on [begin, end) of the tile; zeros without one.
template <class T>
void fill_bias(const Problem& problem, const TileRange& tile, int64_t r, int64_t begin, int64_t end, T* row) {
  if (!problem.bias) {
    std::fill(row + begin, row + end, T{0});
    return;
  }
  const void* bias = problem.bias.at(tile.b, tile.h, tile.first_row + r, tile.first_key + begin);
  const int64_t step = problem.bias.stride[3];
  switch (problem.bias.dtype) {
    case DType::f64: copy_bias(static_cast<const double*>(bias), step, end - begin, row + begin); break;
    case DType::f32: copy_bias(static_cast<const float*>(bias), step, end - begin, row + begin); break;
    case DType::bf16: copy_bias(static_cast<const BFloat16*>(bias), step, end - begin, row + begin); break;
    default: copy_bias(static_cast<const Float16*>(bias), step, end - begin, row + begin); break;
  }
}

template <class T>
void hide_by_mask(const Problem& problem, const TileRange& tile, int64_t r, int64_t begin, int64_t end, T* row) {
  const auto* mask =
      static_cast<const uint8_t*>(problem.mask.at(tile.b, tile.h, tile.first_row + r, tile.first_key + begin));
  const int64_t step = problem.mask.stride[3];
  for (int64_t c = begin; c < end; ++c) {
    row[c] = mask[(c - begin) * step] != 0 ? row[c] : kHidden<T>;
  }
}

template <class T>
void hide_by_segment(const Problem& problem, const TileRange& tile, int64_t r, int64_t begin, int64_t end, T* row) {
  const int64_t id = integer(problem.query_segment, tile.b, tile.first_row + r, 0);
  const Operand& keys = problem.key_segment;
  const void* ids = keys.at(tile.b, 0, 0, tile.first_key + begin);
  const int64_t step = keys.stride[3];
  if (keys.dtype == DType::i64) {
    const auto* segment = static_cast<const int64_t*>(ids);
    for (int64_t c = begin; c < end; ++c) row[c] = segment[(c - begin) * step] == id ? row[c] : kHidden<T>;
  } else {
    const auto* segment = static_cast<const int32_t*>(ids);
    for (int64_t c = begin; c < end; ++c) row[c] = segment[(c - begin) * step] == id ? row[c] : kHidden<T>;
  }
}

template <class T>
void hide_by_block(const Problem& problem, const TileRange& tile, int64_t r, int64_t begin, int64_t end, T* row) {
  const int64_t block_row = (tile.first_row + r) / problem.block.queries;
  for (int64_t c = begin; c < end;) {
    const int64_t block = (tile.first_key + c) / problem.block.keys;
    // The block's last key may lie beyond 64 bits for huge blocks: compare by what is left of it.
    const int64_t left = problem.block.keys - (tile.first_key + c) % problem.block.keys;
    const int64_t next = left < end - c ? c + left : end;
    if (!truth(problem.block_mask, tile.b, tile.h, block_row, block)) std::fill(row + c, row + next, kHidden<T>);
    c = next;
  }
}

/// What the rows of a tile turned out to show.
struct Shown {
  int64_t pairs = 0;
  int64_t first = std::numeric_limits<int64_t>::max();  ///< columns
  int64_t last = -1;
  bool plain = true;  ///< every visible term is 0
};

template <class T>
void look_at_row(const T* row, int64_t begin, int64_t end, Shown& shown) {
  int64_t visible = 0;
  int64_t zeros = 0;
  for (int64_t c = begin; c < end; ++c) {
    visible += row[c] == kHidden<T> ? 0 : 1;
    zeros += row[c] == T{0} ? 1 : 0;
  }
  shown.pairs += visible;
  shown.plain = shown.plain && zeros == visible;
  if (visible == 0) return;
  while (row[begin] == kHidden<T>) ++begin;
  while (row[end - 1] == kHidden<T>) --end;
  shown.first = std::min(shown.first, begin);
  shown.last = std::max(shown.last, end - 1);
}

/// One row of terms on the cover.
template <class T>
void fill_row(const Problem& problem, const TileRange& tile, TileCover cover, int64_t r, const T* distances, T* row,
              Shown& shown) {
  const KeyRange range = visible_range(problem, problem.sequence(tile.b), tile.first_row + r);
  const int64_t begin = std::clamp(range.begin - tile.first_key, cover.begin, cover.end);
  const int64_t end = std::clamp(range.end - tile.first_key, begin, cover.end);
  std::fill(row + cover.begin, row + begin, kHidden<T>);
  fill_bias(problem, tile, r, begin, end, row);
  if (distances != nullptr) {
    const T* terms = distances + tile.rows - 1 - r;
    for (int64_t c = begin; c < end; ++c) row[c] = sum_of_terms(row[c], terms[c]);
  }
  if (problem.mask) hide_by_mask(problem, tile, r, begin, end, row);
  if (problem.query_segment) hide_by_segment(problem, tile, r, begin, end, row);
  if (problem.block_mask) hide_by_block(problem, tile, r, begin, end, row);
  std::fill(row + end, row + cover.end, kHidden<T>);
  look_at_row(row, begin, end, shown);
}

/// Lengths, causal and window masks alone: which columns any row sees, and whether all rows see all of them.
TileCover cover_of_ranges(const Problem& problem, const TileRange& tile, int64_t panel, int64_t lanes) {
  const Sequence& sequence = problem.sequence(tile.b);
  const int64_t last_key = tile.first_key + tile.keys;
  KeyRange any{last_key, tile.first_key};
  KeyRange all{tile.first_key, last_key};
  for (int64_t i = tile.first_row; i < tile.first_row + tile.rows; ++i) {
    KeyRange range = visible_range(problem, sequence, i);
    range.begin = std::max(range.begin, tile.first_key);
    range.end = std::min(range.end, last_key);
    all = {std::max(all.begin, range.begin), std::min(all.end, range.end)};
    if (range.empty()) continue;
    any = {std::min(any.begin, range.begin), std::max(any.end, range.end)};
  }
  if (any.empty()) return {};
  TileCover cover{Cover::partial, any.begin - tile.first_key, any.end - tile.first_key};
  cover.begin -= cover.begin % panel;
  if (all.begin - tile.first_key <= cover.begin && all.end - tile.first_key == cover.end) cover.cover = Cover::full;
  if (!all.empty()) {
    cover.shared_begin = round_up(all.begin - tile.first_key, lanes);
    cover.shared_end = std::max(cover.shared_begin, (all.end - tile.first_key) / lanes * lanes);
  }
  return cover;
}

/// The terms of a tile that only ranges make partial: 0 and -inf, outside the shared columns.
template <class T>
void fill_ranges(const Problem& problem, const TileRange& tile, const TileCover& cover, int64_t panel, T* terms,
                 int64_t stride) {
  const int64_t padded_end = round_up(cover.end, panel);
  for (int64_t r = 0; r < tile.rows; ++r) {
    T* row = terms + r * stride;
    const KeyRange range = visible_range(problem, problem.sequence(tile.b), tile.first_row + r);
    const int64_t begin = std::clamp(range.begin - tile.first_key, cover.begin, cover.end);
    const int64_t end = std::clamp(range.end - tile.first_key, begin, cover.end);
    for (const KeyRange part : {KeyRange{cover.begin, cover.shared_begin}, KeyRange{cover.shared_end, padded_end}}) {
      const int64_t shown = std::clamp(begin, part.begin, std::max(part.begin, part.end));
      const int64_t hidden = std::clamp(end, shown, std::max(shown, part.end));
      std::fill(row + part.begin, row + shown, kHidden<T>);
      std::fill(row + shown, row + hidden, T{0});
      if (hidden < part.end) std::fill(row + hidden, row + part.end, kHidden<T>);
    }
  }
}

/// The terms of a tile; the cover comes back refined: empty when nothing is visible, full when terms need not be read.
template <class T>
TileCover fill_terms(const Problem& problem, const BucketMap& buckets, const TileRange& tile, TileCover cover,
                     int64_t panel, T* terms, int64_t stride, T* distances) {
  const bool relative = problem.slopes || problem.table;
  if (relative) fill_distances(problem, buckets, tile, distances);
  Shown shown;
  for (int64_t r = 0; r < tile.rows; ++r) {
    T* row = terms + r * stride;
    fill_row(problem, tile, cover, r, relative ? distances : nullptr, row, shown);
    std::fill(row + cover.end, row + round_up(cover.end, panel), kHidden<T>);
  }
  if (shown.pairs == 0) return {};
  const bool full = shown.plain && shown.pairs == tile.rows * (cover.end - cover.begin);
  return {full ? Cover::full : Cover::partial, shown.first - shown.first % panel, shown.last + 1};
}

}  // namespace

BucketMap::BucketMap(const Problem& problem) : problem_(problem) {
  if (!problem.table) return;
  int64_t longest = 1;
  for (const Sequence& sequence : problem.sequences) longest = std::max(longest, sequence.Tq + sequence.Tk);
  reach_ = std::min(problem.buckets.max_distance, longest);
  buckets_.resize(static_cast<size_t>(2 * reach_ + 1));
  for (int64_t distance = -reach_; distance <= reach_; ++distance) {
    buckets_[static_cast<size_t>(distance + reach_)] =
        relative_bucket(distance, problem.table_buckets, problem.buckets);
  }
}

int64_t BucketMap::operator()(int64_t distance) const {
  // Beyond the largest distance of the rule buckets do not change any more.
  if (reach_ == problem_.buckets.max_distance) distance = std::clamp(distance, -reach_, reach_);
  if (distance < -reach_ || distance > reach_) {
    return relative_bucket(distance, problem_.table_buckets, problem_.buckets);
  }
  return buckets_[static_cast<size_t>(distance + reach_)];
}

template <class T>
TileCover plan_tile(const Problem& problem, const BucketMap& buckets, const TileRange& tile,
                    const AttentionKernels<T>& kernels, const TermsScratch<T>& scratch) {
  TileCover cover = cover_of_ranges(problem, tile, kernels.panel_width, kernels.lanes);
  if (cover.cover == Cover::empty) return cover;
  if (has_additive_terms(problem) || has_tensor_masks(problem)) {
    return fill_terms(problem, buckets, tile, cover, kernels.panel_width, scratch.terms, scratch.stride,
                      scratch.distances);
  }
  if (cover.cover == Cover::partial) {
    fill_ranges(problem, tile, cover, kernels.panel_width, scratch.terms, scratch.stride);
  }
  return cover;
}

template TileCover plan_tile(const Problem&, const BucketMap&, const TileRange&, const AttentionKernels<float>&,
                             const TermsScratch<float>&);
template TileCover plan_tile(const Problem&, const BucketMap&, const TileRange&, const AttentionKernels<double>&,
                             const TermsScratch<double>&);

}  // namespace qkv
