// SPDX-License-Identifier: Apache-2.0
#include "attention/probe_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qkv {
namespace {

template <class T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

/// Hides what pads a tile's rows of scores to strands.
template <class T>
void hide_padding(const ScoreBlock<T>& block, const TileCover<T>& cover) {
  for (int64_t r = 0; r < block.rows; ++r) {
    T* s = block.row(r);
    std::fill(s + block.begin, s + cover.begin, kHidden<T>);
    std::fill(s + cover.end, s + block.end, kHidden<T>);
  }
}

}  // namespace

template <class T>
ScoreTiles<T>::ScoreTiles(const Problem& problem, const BucketMap& buckets, int64_t item_rows, int64_t block_keys)
    : problem_(problem),
      kernels_(qkv::kernels().attention<T>()),
      block_keys_(block_keys),
      planner_(problem, buckets, kernels_, kForwardRows, block_keys),
      cache_(problem, kernels_, block_keys, false),
      q_(item_rows * problem.D),
      scores_(kForwardRows * block_keys) {}

template <class T>
void ScoreTiles<T>::load(const RowItem& item) {
  item_ = item;
  packed_ = false;
}

template <class T>
void ScoreTiles<T>::pack_queries() {
  const int64_t row = problem_.sequence(item_.b).q_begin + item_.first_row;
  kernels_.pack_rows(stored_rows(problem_.q, item_.b, item_.h, row, item_.rows, problem_.D), q_.get(), problem_.D,
                     nullptr);
  if (problem_.scale < 0) {
    for (int64_t n = 0; n < item_.rows * problem_.D; ++n) q_[n] = -q_[n];
  }
  packed_ = true;
}

template <class T>
ScoreBlock<T> ScoreTiles<T>::tile(int64_t r, int64_t index) {
  const int64_t first_key = index * block_keys_;
  const int64_t keys = std::min(block_keys_, problem_.sequence(item_.b).Tk - first_key);
  const TileRange range{item_.b, item_.h, item_.first_row + r, std::min(kForwardRows, item_.rows - r), first_key, keys};
  ScoreBlock<T> block{range.rows, first_key, 0, 0, scores_.get(), block_keys_};
  const TileCover<T> cover = planner_.plan(range);
  if (cover.empty()) return block;
  if (!packed_) pack_queries();
  ScoreTile<T> tile{.q = q_.get() + r * problem_.D,
                    .q_stride = problem_.D,
                    .keys = cache_.block(item_.b, problem_.kv_head(item_.h), index).keys,
                    .rows = range.rows,
                    .D = problem_.D,
                    .scale = static_cast<T>(std::fabs(problem_.scale)),
                    .softcap = static_cast<T>(problem_.softcap),
                    .finished = true,
                    .scores = scores_.get(),
                    .scores_stride = block_keys_};
  cover.apply(tile);
  kernels_.score_tile(tile);
  block.begin = cover.begin / kStrands * kStrands;
  block.end = round_up(cover.end, kStrands);
  hide_padding(block, cover);
  return block;
}

template class ScoreTiles<float>;
template class ScoreTiles<double>;

}  // namespace qkv
