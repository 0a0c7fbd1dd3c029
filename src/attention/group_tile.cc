// SPDX-License-Identifier: Apache-2.0
#include "attention/group_tile.h"

#include <algorithm>

#include "qkv/support/checked.h"

namespace qkv {
namespace {

/// Masks and terms that query heads of a group need not share.
bool differs_by_head(const Problem& problem) { return has_additive_terms(problem) || has_tensor_masks(problem); }

}  // namespace

template <class T>
GroupPlanner<T>::GroupPlanner(const Problem& problem, const BucketMap& buckets, const AttentionKernels<T>& kernels,
                              int64_t rows, int64_t keys)
    : problem_(problem),
      planner_(problem, buckets, kernels, rows, keys),
      words_(ceil_divide(keys, kWordBits)),
      bits_(rows * words_),
      terms_(has_additive_terms(problem) ? rows * words_ * kWordBits : 0) {}

/// What a head's rows see, nothing outside of its cover.
template <class T>
void GroupPlanner<T>::keep_bits(const TileCover<T>& cover, int64_t row, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    uint64_t* bits = bits_.get() + (row + r) * words_;
    for (int64_t w = 0; w < words_; ++w) {
      const int64_t first = w * kWordBits;
      const uint64_t inside = word_range(cover.begin - first, cover.end - first);
      const uint64_t shared = word_range(cover.shared_begin - first, cover.shared_end - first);
      const uint64_t seen = cover.visible == nullptr ? ~uint64_t{0} : cover.visible[r * cover.visible_stride + w];
      bits[w] = inside & (seen | shared);
    }
  }
}

template <class T>
void GroupPlanner<T>::keep_terms(const TileCover<T>& cover, int64_t row, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = cover.terms + r * cover.terms_stride;
    std::copy(from + cover.begin, from + cover.end, terms_.get() + (row + r) * words_ * kWordBits + cover.begin);
  }
}

template <class T>
TileCover<T> GroupPlanner<T>::plan(const TileRange& tile, int64_t heads) {
  TileCover<T> all = planner_.plan(tile);
  const bool differs = differs_by_head(problem_);
  if (heads == 1 || (!differs && all.visible == nullptr)) return all;
  TileCover<T> cover = all;
  bool is_full = true;
  TileRange of_head = tile;
  for (int64_t g = 0; g < heads; ++g, ++of_head.h) {
    if (differs && g > 0) cover = planner_.plan(of_head);
    keep_bits(cover, g * tile.rows, tile.rows);
    if (!cover.empty() && cover.terms != nullptr) keep_terms(cover, g * tile.rows, tile.rows);
    is_full = is_full && cover.visible == nullptr && cover.begin == all.begin && cover.end == all.end;
    if (cover.empty()) continue;
    all.begin = all.empty() ? cover.begin : std::min(all.begin, cover.begin);
    all.end = std::max(all.end, cover.end);
  }
  all.visible = is_full ? nullptr : bits_.get();
  all.visible_stride = words_;
  if (differs) {
    all.shared_begin = all.shared_end = 0;
    all.blank_words = 0;  // those of one head are not the others'
  }
  all.terms = terms_.get();
  all.terms_stride = words_ * kWordBits;
  return all;
}

template class GroupPlanner<float>;
template class GroupPlanner<double>;

}  // namespace qkv
