// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_tiles.h"

#include <cmath>

namespace qkv {

template <class T>
BackwardTiles<T>::BackwardTiles(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows)
    : problem_(problem),
      buckets_(buckets),
      rows_(rows),
      kernels_(kernels().attention<T>()),
      q_stride_(round_up(problem.D, kernels_.lanes)),
      v_stride_(round_up(problem.Dv, kernels_.lanes)),
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
      terms_(kBackwardRows * kBackwardKeys),
      distances_(kBackwardRows + kBackwardKeys),
      k_found_(kBackwardKeys),
      q_found_(kBackwardRows),
      d_out_found_(kBackwardRows),
      row_keys_(kBackwardRows) {
  tile_.score.q_stride = q_stride_;
  tile_.score.keys = keys_.get();
  tile_.score.D = problem.D;
  tile_.score.scale = static_cast<T>(std::fabs(problem.scale));
  tile_.score.softcap = static_cast<T>(problem.softcap);
  tile_.score.finished = needs_finished_scores(problem);
  tile_.score.terms_stride = kBackwardKeys;
  tile_.score.scores = scores_.get();
  tile_.score.scores_stride = kBackwardKeys;
  tile_.v_stride = v_stride_;
  tile_.Dv = problem.Dv;
  tile_.values = values_.get();
  tile_.k = k_.get();
  tile_.d_scores = d_scores_.get();
  tile_.factors = factors_.get();
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
  tile_.is_whole_row = rows_.is_whole.get() + first;
}

template <class T>
bool BackwardTiles<T>::run(bool want_keys, bool want_values) {
  cover_ = plan_tile<T>(problem_, buckets_, range_, kernels_, {terms_.get(), kBackwardKeys, distances_.get()});
  if (cover_.cover == Cover::empty) return false;
  tile_.score.begin = cover_.begin;
  tile_.score.end = cover_.end;
  tile_.score.shared_begin = cover_.shared_begin;
  tile_.score.shared_end = cover_.shared_end;
  tile_.score.terms = cover_.cover == Cover::partial ? terms_.get() : nullptr;
  tile_.dropout = tile_dropout<T>(problem_, range_, row_keys_.get());
  tile_.d_k = want_keys ? d_k_.get() : nullptr;
  tile_.d_v = want_values ? d_v_.get() : nullptr;
  kernels_.backward_tile(tile_);
  return true;
}

template <class T>
void BackwardTiles<T>::add_query_gradients(T* d_q) {
  tile_.d_q = d_q;
  kernels_.query_gradients(tile_);
}

template class BackwardTiles<float>;
template class BackwardTiles<double>;

}  // namespace qkv
