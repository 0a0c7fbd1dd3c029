// SPDX-License-Identifier: Apache-2.0
#include "attention/tangent_strip.h"

#include <type_traits>

#include "attention/score_tile.h"

namespace qkv {
namespace {

/// What one worker keeps of a strip: at 8 bytes a pair, forward mode's, strips of 10,922 keys.
constexpr int64_t kStripBytes = int64_t{8} << 20;

}  // namespace

StripPlan::StripPlan(const Problem& problem, int64_t panel_width, int64_t element_size, int64_t copies, int64_t bytes) {
  block_keys = forward_key_block(copies * problem.D, copies * problem.Dv, element_size);
  stride = round_up(std::min(block_keys, longest_keys(problem)), panel_width);
  const int64_t blocks = ceil_divide(longest_keys(problem), block_keys);
  keeps = blocks <= kStripBytes / (bytes * kStripRows * std::max<int64_t>(stride, 1));
  tiles = keeps ? blocks : 1;
}

template <class T>
TangentStrip<T>::TangentStrip(const Problem& problem, const BucketMap& buckets, const StateOperands& state,
                              const TangentOperands& tangents, const StripPlan& plan)
    : problem_(problem),
      state_(state),
      tangents_(tangents),
      plan_(plan),
      kernels_(kernels().attention<T>()),
      q_stride_(round_up(problem.D, kernels_.lanes)),
      planner_(problem, buckets, kernels_, kStripRows, plan.stride),
      dropout_(problem, kernels_, kStripRows, plan.stride),
      t_terms_(problem, tangents, buckets, kernels_, kStripRows, plan.stride),
      q_(plan.item_rows() * q_stride_),
      t_q_(tangents.q ? plan.item_rows() * q_stride_ : 0),
      rows_(static_cast<size_t>(plan.item_rows())) {
  for (AlignedArray<T>* by_row :
       {&m_, &inverse_l_, &inverse_l_low_, &mean_, &mean_low_, &weight_sum_, &center_, &centered_sum_}) {
    *by_row = AlignedArray<T>(plan.item_rows());
  }
  if constexpr (std::is_same_v<T, float>) {
    if (!uses_pairs(problem)) return;
    pair_q_ = AlignedArray<BFloat16Pair>(plan.item_rows() * width_in<float, BFloat16Pair>(problem.D));
    pair_keys_.emplace(problem, kernels_, plan.block_keys, false);
  }
}

template <class T>
void TangentStrip<T>::load_rows(const Operand& operand, const RowItem& item, AlignedArray<T>& to) {
  const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
  kernels_.pack_rows(stored_rows(operand, item.b, item.h, row, item.rows, problem_.D), to.get(), q_stride_, nullptr);
  if (problem_.scale >= 0) return;
  for (int64_t n = 0; n < item.rows * q_stride_; ++n) to[n] = -to[n];
}

template <class T>
void TangentStrip<T>::load(const RowItem& item) {
  load_rows(problem_.q, item, q_);
  if (tangents_.q) load_rows(tangents_.q, item, t_q_);
  if (pair_keys_) {
    const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
    pack_queries<float>(problem_, stored_rows(problem_.q, item.b, item.h, row, item.rows, problem_.D), pair_q_.get());
  }
  for (int64_t r = 0; r < item.rows; ++r) {
    const int64_t number = problem_.row_index(item.b, item.h) + (item.first_row + r) * problem_.row_step();
    const T m = load_as<T>(DTypeOf<T>::value, state_.row_max.at(0, 0, number, 0));
    const T l = load_as<T>(DTypeOf<T>::value, state_.row_sum.at(0, 0, number, 0));
    const RowWeights<T> weights(problem_, item.h, m, l);
    rows_[static_cast<size_t>(r)] = weights;
    m_[r] = weights.m;
    inverse_l_[r] = weights.inverse_l;
    inverse_l_low_[r] = weights.inverse_l_low;
  }
}

template <class T>
TangentTile<T> TangentStrip<T>::tile(const StripPart<T>& part, const T* keys, const T* t_keys, T* weights,
                                     T* moves) const {
  const int64_t r = part.r;
  const T sign = problem_.scale < 0 ? T{-1} : T{1};
  TangentTile<T> tile{};
  tile.score = {.q = q_.get() + r * q_stride_,
                .q_stride = q_stride_,
                .keys = keys,
                .rows = part.range.rows,
                .D = problem_.D,
                .scale = static_cast<T>(std::fabs(problem_.scale)),
                .softcap = static_cast<T>(problem_.softcap),
                .finished = needs_finished_scores(problem_),
                .scores = weights,
                .scores_stride = plan_.stride};
  part.cover.apply(tile.score);
  tile.t_q = tangents_.q ? t_q_.get() + r * q_stride_ : nullptr;
  tile.t_keys = t_keys;
  tile.t_scale = sign * static_cast<T>(tangents_.scale_value());
  tile.t_terms = t_terms_.terms();
  tile.t_terms_stride = t_terms_.stride();
  tile.m = m_.get() + r;
  tile.inverse_l = inverse_l_.get() + r;
  tile.inverse_l_low = inverse_l_low_.get() + r;
  tile.tangents = moves;
  tile.weight_sum = weight_sum_.get() + r;
  tile.center = center_.get() + r;
  tile.centered_sum = centered_sum_.get() + r;
  tile.mean = mean_.get() + r;
  tile.mean_low = mean_low_.get() + r;
  return tile;
}

template <class T>
void TangentStrip<T>::multiply(const StripPart<T>& part, TangentTile<T>& tile) {
  if constexpr (std::is_same_v<T, float>) {
    if (!pair_keys_) return;
    const TileRange& range = part.range;
    const BFloat16Pair* keys =
        pair_keys_->block(range.b, problem_.kv_head(range.h), range.first_key / plan_.block_keys).keys;
    const BFloat16Pair* q = pair_q_.get() + part.r * width_in<float, BFloat16Pair>(problem_.D);
    kernels().bf16->raw_scores(score_tile<float, BFloat16Pair>(problem_, part.cover, q, range.rows, keys,
                                                               {tile.score.scores, tile.score.scores_stride}));
    tile.has_products = true;
  }
}

template class TangentStrip<float>;
template class TangentStrip<double>;

}  // namespace qkv
