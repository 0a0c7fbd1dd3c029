// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_tiles.h"

#include <cmath>

namespace qkv {

template <class T>
BackwardTiles<T>::BackwardTiles(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows)
    : problem_(problem),
      rows_(rows),
      kernels_(kernels().attention<T>()),
      q_stride_(round_up(problem.D, kernels_.lanes)),
      v_stride_(round_up(problem.Dv, kernels_.lanes)),
      planner_(problem, buckets, kernels_, kBackwardRows, kBackwardKeys),
      dropout_(problem, kernels_, kBackwardRows, kBackwardKeys),
      keys_(kBackwardKeys * problem.D),
      values_(kBackwardKeys * problem.Dv),
      k_(kBackwardKeys * q_stride_),
      d_k_(kBackwardKeys * q_stride_),
      d_v_(kBackwardKeys * v_stride_),
      q_(kBackwardRows * q_stride_),
      q_finite_(kBackwardRows * q_stride_),
      d_out_(kBackwardRows * v_stride_),
      d_out_finite_(kBackwardRows * v_stride_),
      scores_(kBackwardRows * kBackwardKeys),
      d_scores_(kBackwardRows * kBackwardKeys),
      factors_(problem.softcap > 0 ? kBackwardRows * kBackwardKeys : 0),
      k_found_(kBackwardKeys),
      q_found_(kBackwardRows),
      d_out_found_(kBackwardRows),
      is_whole_row_(kBackwardRows) {
  tile_.score.q_stride = q_stride_;
  tile_.score.keys = keys_.get();
  tile_.score.D = problem.D;
  tile_.score.scale = static_cast<T>(std::fabs(problem.scale));
  tile_.score.softcap = static_cast<T>(problem.softcap);
  tile_.score.finished = needs_finished_scores(problem);
  tile_.score.scores = scores_.get();
  tile_.score.scores_stride = kBackwardKeys;
  tile_.v_stride = v_stride_;
  tile_.Dv = problem.Dv;
  tile_.values = values_.get();
  tile_.k = k_.get();
  tile_.d_scores = d_scores_.get();
  tile_.factors = factors_.get();
  tile_.is_whole_row = is_whole_row_.get();
  parts_.reserve(ceil_divide(kBackwardRows, kBackwardEdgeRows));
}

template <class T>
void BackwardTiles<T>::load_keys(int64_t b, int64_t hkv, int64_t index) {
  const Sequence& sequence = problem_.sequence(b);
  range_.first_key = index * kBackwardKeys;
  range_.keys = std::min(kBackwardKeys, sequence.Tk - range_.first_key);
  const int64_t row = sequence.k_begin + range_.first_key;
  const StoredRows k = stored_rows(problem_.k, b, hkv, row, range_.keys, problem_.D);
  kernels_.pack_panels(k, keys_.get());
  tile_.k_nonfinite = {k, k_found_.get(), kernels_.pack_rows(k, k_.get(), q_stride_, k_found_.get())};
  kernels_.pack_panels(stored_rows(problem_.v, b, hkv, row, range_.keys, problem_.Dv), values_.get());
  std::fill_n(d_k_.get(), range_.keys * q_stride_, T{0});
  std::fill_n(d_v_.get(), range_.keys * v_stride_, T{0});
}

template <class T>
const T* BackwardTiles<T>::load_rows(const StoredRows& stored, int64_t stride, T* finite, T* raw, int64_t* found,
                                     NonFiniteRows& nonfinite) {
  nonfinite = {stored, found, kernels_.pack_rows(stored, finite, stride, found)};
  if (nonfinite.count == 0) return finite;
  kernels_.pack_rows(stored, raw, stride, nullptr);
  return raw;
}

template <class T>
void BackwardTiles<T>::load_queries(int64_t b, int64_t h, int64_t index) {
  const Sequence& sequence = problem_.sequence(b);
  range_.b = b;
  range_.h = h;
  range_.first_row = index * kBackwardRows;
  range_.rows = std::min(kBackwardRows, sequence.Tq - range_.first_row);
  const int64_t row = sequence.q_begin + range_.first_row;
  q_raw_ = load_rows(stored_rows(problem_.q, b, h, row, range_.rows, problem_.D), q_stride_, q_finite_.get(), q_.get(),
                     q_found_.get(), tile_.q_nonfinite);
  if (problem_.scale < 0) {
    for (int64_t n = 0; n < range_.rows * q_stride_; ++n) q_finite_[n] = -q_finite_[n];
    if (q_raw_ != q_finite_.get()) {
      for (int64_t n = 0; n < range_.rows * q_stride_; ++n) q_[n] = -q_[n];
    }
  }
  tile_.score.q = q_raw_;
  tile_.score.rows = range_.rows;
  tile_.q_finite = q_finite_.get();
  tile_.d_out = load_rows(stored_rows(rows_.d_out, b, h, row, range_.rows, problem_.Dv), v_stride_, d_out_finite_.get(),
                          d_out_.get(), d_out_found_.get(), tile_.d_out_nonfinite);
  tile_.d_out_finite = d_out_finite_.get();
  const int64_t first = contiguous_row(problem_, b, h) + range_.first_row;
  tile_.m = rows_.m.get() + first;
  tile_.inverse_l = rows_.inverse_l.get() + first;
  tile_.inverse_l_low = rows_.inverse_l_low.get() + first;
  tile_.delta = rows_.delta.get() + first;
  tile_.final_delta = rows_.final_delta.get() + first;
  tile_.sink_weight = rows_.sink_weight.get() + first;
}

template <class T>
const std::vector<BackwardPart<T>>& BackwardTiles<T>::run(bool want_keys, bool want_values) {
  tile_.d_k = want_keys ? d_k_.get() : nullptr;
  tile_.d_v = want_values ? d_v_.get() : nullptr;
  // A row has one tile that completes its delta, whatever other rows bring it into more of them.
  const int64_t first = contiguous_row(problem_, range_.b, range_.h) + range_.first_row;
  const int64_t block = range_.first_key / kBackwardKeys;
  for (int64_t r = 0; r < range_.rows; ++r) is_whole_row_[r] = rows_.whole_block[first + r] == block ? 1 : 0;
  parts_.clear();
  run_part(0, range_.rows);
  return parts_;
}

template <class T>
void BackwardTiles<T>::run_part(int64_t r, int64_t rows) {
  BackwardPart<T> part{.range = range_, .cover = {}, .tile = {}};
  part.range.first_row += r;
  part.range.rows = rows;
  part.cover = planner_.plan(part.range, r);
  if (part.cover.empty()) return;
  if (rows > kBackwardEdgeRows && part.cover.edge) {
    for (int64_t first = 0; first < rows; first += kBackwardEdgeRows) {
      run_part(r + first, std::min(kBackwardEdgeRows, rows - first));
    }
    return;
  }
  part.tile = tile_of(part, r);
  kernels_.backward_tile(part.tile);
  parts_.push_back(part);
}

template <class T>
BackwardTile<T> BackwardTiles<T>::tile_of(const BackwardPart<T>& part, int64_t r) {
  BackwardTile<T> tile = tile_;
  tile.score.rows = part.range.rows;
  part.cover.apply(tile.score);
  tile.dropout = dropout_.decide(part.range, {part.cover.begin, part.cover.end});
  tile.q_nonfinite.first_row = tile.d_out_nonfinite.first_row = r;
  for (const T** rows : {&tile.score.q, &tile.q_finite}) *rows += r * q_stride_;
  for (const T** rows : {&tile.d_out, &tile.d_out_finite}) *rows += r * v_stride_;
  for (T** rows : {&tile.score.scores, &tile.d_scores, &tile.factors}) {
    if (*rows != nullptr) *rows += r * kBackwardKeys;
  }
  for (const T** row : {&tile.m, &tile.inverse_l, &tile.inverse_l_low, &tile.delta, &tile.sink_weight}) *row += r;
  tile.is_whole_row += r;
  tile.final_delta += r;
  return tile;
}

template <class T>
void BackwardTiles<T>::add_query_gradients(T* d_q) {
  for (BackwardPart<T>& part : parts_) {
    part.tile.d_q = d_q + (part.range.first_row - range_.first_row) * q_stride_;
    kernels_.query_gradients(part.tile);
  }
}

template class BackwardTiles<float>;
template class BackwardTiles<double>;

}  // namespace qkv
