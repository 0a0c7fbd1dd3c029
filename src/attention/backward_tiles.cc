// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_tiles.h"

#include <cmath>

#include "attention/score_count.h"

namespace qkv {

template <class T, class E>
BackwardTiles<T, E>::BackwardTiles(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows,
                                   BackwardNeeds needs)
    : problem_(problem),
      rows_(rows),
      kernels_(kernels().attention<T>()),
      block_keys_(backward_keys<T>(problem)),
      needs_(needs),
      planner_(problem, buckets, kernels_, kBackwardRows, block_keys_),
      dropout_(problem, kernels_, kBackwardRows, block_keys_),
      keys_(block_keys_ * width_in<T, E>(problem.D), kUninitialised),
      values_(block_keys_ * width_in<T, E>(problem.Dv), kUninitialised),
      k_(block_keys_ / kElements<T, E> * round_up(problem.D, kernels_.lanes), kUninitialised),
      d_k_(block_keys_ * round_up(problem.D, kernels_.lanes), kUninitialised),
      d_v_(block_keys_ * round_up(problem.Dv, kernels_.lanes), kUninitialised),
      k_found_(block_keys_, kUninitialised),
      scores_(kBackwardRows * block_keys_, kUninitialised),
      d_scores_(kBackwardRows * block_keys_, kUninitialised),
      factors_(problem.softcap > 0 ? kBackwardRows * block_keys_ : 0, kUninitialised),
      products_(kInPairs<T, E> && needs.scale_sums ? kBackwardRows * block_keys_ : 0, kUninitialised),
      scale_sums_(kBackwardRows, kUninitialised),
      delta_sums_(kBackwardRows, kUninitialised),
      weights_by_key_(kInPairs<T, E> ? kBackwardRows / 2 * block_keys_ : 0, kUninitialised),
      d_inner_by_key_(kInPairs<T, E> ? kBackwardRows / 2 * block_keys_ : 0, kUninitialised),
      d_inner_by_row_(kInPairs<T, E> ? kBackwardRows * block_keys_ / 2 : 0, kUninitialised),
      is_whole_row_(kBackwardRows, kUninitialised) {
  tile_.q_width = round_up(problem.D, kernels_.lanes);
  tile_.v_width = round_up(problem.Dv, kernels_.lanes);
  tile_.score.q_stride = kInPairs<T, E> ? width_in<T, E>(problem.D) : tile_.q_width;
  tile_.d_out_stride = kInPairs<T, E> ? width_in<T, E>(problem.Dv) : tile_.v_width;
  for (auto [rows_of, width] : {std::pair{&q_, tile_.q_width}, std::pair{&d_out_, tile_.v_width}}) {
    rows_of->streamed = AlignedArray<E>(kBackwardRows / kElements<T, E> * width, kUninitialised);
    rows_of->broadcast = AlignedArray<E>(kBackwardRows * width, kUninitialised);
    rows_of->found = AlignedArray<int64_t>(kBackwardRows, kUninitialised);
  }
  tile_.score.keys = keys_.get();
  tile_.score.D = width_in<T, E>(problem.D);
  tile_.score.scale = static_cast<T>(std::fabs(problem.scale));
  tile_.score.softcap = static_cast<T>(problem.softcap);
  tile_.score.finished = needs_finished_scores(problem);
  tile_.score.scores = scores_.get();
  tile_.score.scores_stride = block_keys_;
  tile_.Dv = width_in<T, E>(problem.Dv);
  tile_.values = values_.get();
  tile_.k_streamed = k_.get();
  tile_.d_scores = d_scores_.get();
  tile_.factors = factors_.get();
  tile_.products = products_.get();
  tile_.scale_sums = scale_sums_.get();
  tile_.delta_sums = delta_sums_.get();
  tile_.weights_by_key = weights_by_key_.get();
  tile_.d_inner_by_key = d_inner_by_key_.get();
  tile_.d_inner_by_row = d_inner_by_row_.get();
  tile_.is_whole_row = is_whole_row_.get();
  parts_.reserve(ceil_divide(kBackwardRows, kBackwardEdgeRows));
}

template <class T, class E>
void BackwardTiles<T, E>::load_keys(int64_t b, int64_t hkv, int64_t index) {
  const Sequence& sequence = problem_.sequence(b);
  range_.first_key = index * block_keys_;
  range_.keys = std::min(block_keys_, sequence.Tk - range_.first_key);
  const int64_t row = sequence.k_begin + range_.first_key;
  const StoredRows k = stored_rows(problem_.k, b, hkv, row, range_.keys, problem_.D);
  pack_panels(k, keys_.get());
  tile_.k_nonfinite = pack_streamed_rows(k, k_.get(), tile_.q_width, k_found_.get());
  pack_panels(stored_rows(problem_.v, b, hkv, row, range_.keys, problem_.Dv), values_.get());
  std::fill_n(d_k_.get(), range_.keys * tile_.q_width, T{0});
  std::fill_n(d_v_.get(), range_.keys * tile_.v_width, T{0});
}

template <class T, class E>
const E* BackwardTiles<T, E>::load_rows(const StoredRows& stored, bool negative, Rows& rows, int64_t stride,
                                        int64_t width, NonFiniteRows& nonfinite) {
  E* streamed = rows.streamed.get();
  E* broadcast = rows.broadcast.get();
  nonfinite = pack_streamed_rows(stored, streamed, width, rows.found.get());
  if (negative) negate(streamed, ceil_divide(stored.rows, kElements<T, E>) * width);
  if (!kInPairs<T, E> && nonfinite.count == 0) return streamed;
  pack_broadcast_rows(stored, broadcast, stride);
  if (negative) negate(broadcast, stored.rows * stride);
  return broadcast;
}

template <class T, class E>
void BackwardTiles<T, E>::load_queries(int64_t b, int64_t h, int64_t index) {
  const Sequence& sequence = problem_.sequence(b);
  range_.b = b;
  range_.h = h;
  range_.first_row = index * kBackwardRows;
  range_.rows = std::min(kBackwardRows, sequence.Tq - range_.first_row);
  const int64_t row = sequence.q_begin + range_.first_row;
  tile_.score.q = load_rows(stored_rows(problem_.q, b, h, row, range_.rows, problem_.D), problem_.scale < 0, q_,
                            tile_.score.q_stride, tile_.q_width, tile_.q_nonfinite);
  tile_.score.rows = range_.rows;
  tile_.q_streamed = q_.streamed.get();
  tile_.d_out = load_rows(stored_rows(rows_.d_out, b, h, row, range_.rows, problem_.Dv), false, d_out_,
                          tile_.d_out_stride, tile_.v_width, tile_.d_out_nonfinite);
  tile_.d_out_streamed = d_out_.streamed.get();
  tile_.keep_d_scores = needs_.d_scores || needs_.scale_sums || tile_.q_nonfinite.count + tile_.k_nonfinite.count > 0;
  const int64_t first = contiguous_row(problem_, b, h) + range_.first_row;
  tile_.m = rows_.m.get() + first;
  tile_.inverse_l = rows_.inverse_l.get() + first;
  tile_.inverse_l_low = rows_.inverse_l_low.get() + first;
  tile_.delta = rows_.delta.get() + first;
  tile_.delta_low = rows_.delta_low.get() + first;
  tile_.estimate = rows_.estimate.get() + first;
  tile_.final_delta = rows_.final_delta.get() + first;
  tile_.sink_weight = rows_.sink_weight.get() + first;
}

template <class T, class E>
const std::vector<BackwardPart<T, E>>& BackwardTiles<T, E>::run(bool want_keys, bool want_values) {
  tile_.d_k = want_keys ? d_k_.get() : nullptr;
  tile_.d_v = want_values ? d_v_.get() : nullptr;
  // A row has one tile that completes its delta, whatever other rows bring it into more of them.
  const int64_t first = contiguous_row(problem_, range_.b, range_.h) + range_.first_row;
  const int64_t block = range_.first_key / block_keys_;
  for (int64_t r = 0; r < range_.rows; ++r) is_whole_row_[r] = rows_.whole_block[first + r] == block ? 1 : 0;
  parts_.clear();
  run_part(0, range_.rows);
  return parts_;
}

template <class T, class E>
const std::vector<BackwardPart<T, E>>& BackwardTiles<T, E>::run_delta_sums() {
  sums_deltas_ = true;
  const std::vector<BackwardPart<T, E>>& parts = run(false, false);
  sums_deltas_ = false;
  return parts;
}

template <class T, class E>
void BackwardTiles<T, E>::run_kernel(const BackwardTile<T, E>& tile) const {
  if constexpr (kInPairs<T, E>) {
    if (sums_deltas_) return kernels().bf16->delta_sums(tile);
  }
  kernels_of<T, E>().backward_tile(tile);
}

template <class T, class E>
void BackwardTiles<T, E>::run_part(int64_t r, int64_t rows) {
  BackwardPart<T, E> part{.range = range_, .cover = {}, .tile = {}};
  part.range.first_row += r;
  part.range.rows = rows;
  part.cover = planner_.plan_leading(part.range, r);
  const int64_t covered = part.range.rows = part.cover.rows;
  if (covered > kBackwardEdgeRows && part.cover.edge) {
    for (int64_t first = 0; first < covered; first += kBackwardEdgeRows) {
      run_part(r + first, std::min(kBackwardEdgeRows, covered - first));
    }
  } else if (!part.cover.empty()) {
    part.tile = tile_of(part, r);
    run_kernel(part.tile);
    if (!sums_deltas_) count_backward(part.tile.score, problem_.D, problem_.Dv);
    parts_.push_back(part);
  }
  if (covered < rows) run_part(r + covered, rows - covered);
}

template <class T, class E>
BackwardTile<T, E> BackwardTiles<T, E>::tile_of(const BackwardPart<T, E>& part, int64_t r) {
  BackwardTile<T, E> tile = tile_;
  tile.score.rows = part.range.rows;
  part.cover.apply(tile.score);
  tile.dropout = dropout_.decide(part.range, {part.cover.begin, part.cover.end});
  tile.q_nonfinite.first_row = tile.d_out_nonfinite.first_row = r;
  tile.score.q += r * tile.score.q_stride;
  tile.q_streamed += r / kElements<T, E> * tile.q_width;
  tile.d_out += r * tile.d_out_stride;
  tile.d_out_streamed += r / kElements<T, E> * tile.v_width;
  for (T** rows : {&tile.score.scores, &tile.d_scores, &tile.factors, &tile.products}) {
    if (*rows != nullptr) *rows += r * block_keys_;
  }
  for (E** pairs : {&tile.weights_by_key, &tile.d_inner_by_key, &tile.d_inner_by_row}) {
    if (*pairs != nullptr) *pairs += r * block_keys_ / 2;
  }
  for (const T** row :
       {&tile.m, &tile.inverse_l, &tile.inverse_l_low, &tile.delta, &tile.delta_low, &tile.estimate, &tile.sink_weight})
    *row += r;
  tile.is_whole_row += r;
  tile.final_delta += r;
  tile.scale_sums += r;
  tile.delta_sums += r;
  return tile;
}

template <class T, class E>
void BackwardTiles<T, E>::add_query_gradients(T* d_q) {
  for (BackwardPart<T, E>& part : parts_) {
    part.tile.d_q = d_q + (part.range.first_row - range_.first_row) * tile_.q_width;
    kernels_of<T, E>().query_gradients(part.tile);
  }
}

template class BackwardTiles<float>;
template class BackwardTiles<double>;
template class BackwardTiles<float, BFloat16Pair>;

}  // namespace qkv
