// SPDX-License-Identifier: Apache-2.0
#include "attention/second_tiles.h"

namespace qkv {
namespace {

/// Packed tensors of one worker, eight forms: those of a head of 4,096 keys at D = 64 in f32.
constexpr int64_t kPackedBytes = int64_t{8} << 20;

/// Sources of PackedBlocks, in this order.
enum Packed : uint8_t {
  kKeys,
  kCotangentKeys,
  kValues,
  kCotangentValues,
  kKeyRows,
  kCotangentKeyRows,
  kValueRows,
  kCotangentValueRows
};

template <class T>
std::vector<typename PackedBlocks<T>::Source> sources(const Problem& problem, const SecondOperands& operands) {
  using Form = typename PackedBlocks<T>::Form;
  const TangentOperands& c = operands.cotangents;
  const auto if_wanted = [](const Operand& gradient, const Operand& operand) { return gradient ? operand : Operand{}; };
  return {{problem.k, problem.D, Form::panels},
          {c.k, problem.D, Form::panels},
          {problem.v, problem.Dv, Form::panels},
          {c.v, problem.Dv, Form::panels},
          {if_wanted(operands.g_q, problem.k), problem.D, Form::rows},
          {if_wanted(operands.g_q, c.k), problem.D, Form::rows},
          {if_wanted(operands.g_d_out, problem.v), problem.Dv, Form::rows},
          {if_wanted(operands.g_d_out, c.v), problem.Dv, Form::rows}};
}

}  // namespace

void SecondSums::add(const SecondSums& tile) {
  if (tile.w.is_empty() && tile.d_p.is_empty() && tile.z.is_empty()) return;
  w.add(tile.w);
  d_p.add(tile.d_p);
  z.add(tile.z);
  const double w_shift = tile.w.center - w.center;
  const double d_p_shift = tile.d_p.center - d_p.center;
  cross += tile.cross + d_p_shift * tile.w.centered + w_shift * tile.d_p.centered + w_shift * d_p_shift * tile.w.weight;
}

template <class T>
SecondMeans<T> SecondSums::means(const RowWeights<T>& weights, double d_lse, double t_sink) const {
  const double share = weights.share(w.weight);
  const auto sink_weight = static_cast<double>(weights.sink_weight);
  // A sink without weight, and its tangent, are nothing.
  const double w_mean = w.sum(share) + (sink_weight == 0 ? 0.0 : sink_weight * t_sink);
  const double delta = d_p.sum(share) - d_lse;
  const double w_shift = w_mean - w.center;
  const double d_p_shift = delta - d_p.center;
  const double product = cross - d_p_shift * w.centered - w_shift * d_p.centered + w_shift * d_p_shift * w.weight;
  SecondMeans<T> means;
  means.w = TwoParts<T>(w_mean);
  means.delta = TwoParts<T>(delta);
  means.z = TwoParts<T>(z.sum(share));
  means.tangent = w_mean + 0.0;
  double rest = product;
  if (sink_weight != 0) {
    const double of_sink = delta * (w_mean - t_sink);
    rest += sink_weight * of_sink;
    if (!w.is_empty()) means.sink_gradient = sink_weight * (of_sink - rest - z.sum(share));
  }
  means.rest = static_cast<T>(rest);
  return means;
}

template <class T>
SecondTiles<T>::SecondTiles(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands,
                            const StripPlan& plan)
    : problem_(problem),
      operands_(operands),
      plan_(plan),
      kernels_(kernels().attention<T>()),
      derivatives_(kernels().derivatives<T>()),
      v_stride_(round_up(problem.Dv, kernels_.lanes)),
      strip_(problem, buckets, operands.state, operands.cotangents, plan),
      packed_(problem, plan.block_keys, sources<T>(problem, operands), kPackedBytes),
      weights_(plan.elements()),
      moves_(plan.elements()),
      d_p_(plan.elements()),
      z_(plan.elements()),
      slope_(problem.softcap > 0 ? plan.elements() : 0),
      bend_(problem.softcap > 0 ? plan.elements() : 0),
      sums_(static_cast<size_t>(plan.item_rows())) {
  const int64_t rows = plan.item_rows();
  for (AlignedArray<T>* of_queries : {&q_, &c_q_, &g_q_}) *of_queries = AlignedArray<T>(rows * q_stride());
  for (AlignedArray<T>* of_outputs : {&d_out_, &d_out_finite_, &g_d_out_}) {
    *of_outputs = AlignedArray<T>(rows * v_stride_);
  }
  for (AlignedArray<int64_t>* found : {&q_found_, &c_q_found_, &d_out_found_}) *found = AlignedArray<int64_t>(rows);
  for (AlignedArray<T>* by_row : {&d_p_center_, &d_p_sum_, &z_center_, &z_sum_, &cross_sum_, &delta_, &delta_low_,
                                  &z_mean_, &z_mean_low_, &rest_}) {
    *by_row = AlignedArray<T>(rows);
  }
}

template <class T>
void SecondTiles<T>::load_finite(const Operand& operand, const RowItem& item, int64_t columns, T sign,
                                 AlignedArray<T>& to, AlignedArray<int64_t>& found, FiniteRows<T>& rows) {
  rows = {};
  if (!operand) return;
  const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
  const int64_t stride = round_up(columns, kernels_.lanes);
  const StoredRows stored = stored_rows(operand, item.b, item.h, row, item.rows, columns);
  rows = {to.get(), {stored, found.get(), kernels_.pack_rows(stored, to.get(), stride, found.get())}};
  if (sign >= 0) return;
  for (int64_t n = 0; n < item.rows * stride; ++n) to[n] = -to[n];
}

template <class T>
void SecondTiles<T>::load(const RowItem& item) {
  item_ = item;
  strip_.load(item);
  const T sign = problem_.scale < 0 ? T{-1} : T{1};
  load_finite(problem_.q, item, problem_.D, sign, q_, q_found_, q_rows_);
  load_finite(operands_.cotangents.q, item, problem_.D, sign, c_q_, c_q_found_, c_q_rows_);
  load_finite(operands_.d_out, item, problem_.Dv, T{1}, d_out_finite_, d_out_found_, d_out_rows_);
  const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
  kernels_.pack_rows(stored_rows(operands_.d_out, item.b, item.h, row, item.rows, problem_.Dv), d_out_.get(), v_stride_,
                     nullptr);
  std::fill(sums_.begin(), sums_.end(), SecondSums{});
  std::fill_n(g_q_.get(), item.rows * q_stride(), T{0});
  std::fill_n(g_d_out_.get(), item.rows * v_stride_, T{0});
}

template <class T>
FiniteRows<T> SecondTiles<T>::from_row(const FiniteRows<T>& rows, int64_t r, int64_t stride) {
  if (rows.rows == nullptr) return {};
  FiniteRows<T> from{rows.rows + r * stride, rows.nonfinite};
  from.nonfinite.first_row = r;
  return from;
}

template <class T>
SecondTile<T> SecondTiles<T>::make_tile(const StripPart<T>& part) {
  const TileRange& range = part.range;
  const int64_t r = part.r;
  const auto& blocks = packed_.block(range.b, problem_.kv_head(range.h), range.first_key / plan_.block_keys);
  const auto rows_of = [&](Packed source) { return FiniteRows<T>{blocks[source].data, blocks[source].nonfinite}; };
  const int64_t place = plan_.place(range.first_key, r);
  SecondTile<T> tile{};
  tile.moved =
      strip_.tile(part, blocks[kKeys].data, blocks[kCotangentKeys].data, weights_.get() + place, moves_.get() + place);
  tile.d_out = d_out_.get() + r * v_stride_;
  tile.values = blocks[kValues].data;
  tile.c_values = blocks[kCotangentValues].data;
  tile.Dv = problem_.Dv;
  tile.v_stride = v_stride_;
  tile.dropout = strip_.dropout(part);
  tile.d_p = d_p_.get() + place;
  tile.z = z_.get() + place;
  if (problem_.softcap > 0) {
    tile.slope = slope_.get() + place;
    tile.bend = bend_.get() + place;
  }
  tile.d_p_sums = {d_p_center_.get() + r, d_p_sum_.get() + r};
  tile.z_sums = {z_center_.get() + r, z_sum_.get() + r};
  tile.cross_sum = cross_sum_.get() + r;
  tile.delta = {delta_.get() + r, delta_low_.get() + r};
  tile.z_mean = {z_mean_.get() + r, z_mean_low_.get() + r};
  tile.rest = rest_.get() + r;
  tile.k = rows_of(kKeyRows);
  tile.c_k = rows_of(kCotangentKeyRows);
  tile.v = rows_of(kValueRows);
  tile.c_v = rows_of(kCotangentValueRows);
  tile.g_q = operands_.g_q ? g_q_.get() + r * q_stride() : nullptr;
  tile.g_d_out = operands_.g_d_out ? g_d_out_.get() + r * v_stride_ : nullptr;
  tile.q = from_row(q_rows_, r, q_stride());
  tile.c_q = from_row(c_q_rows_, r, q_stride());
  tile.d_out_rows = from_row(d_out_rows_, r, v_stride_);
  return tile;
}

template <class T>
void SecondTiles<T>::run_scores(const StripPart<T>& part, bool add) {
  strip_.set_terms(part);
  SecondTile<T> second = make_tile(part);
  strip_.multiply(part, second.moved);
  derivatives_.second_scores(second);
  if (!add) return;
  for (int64_t r = part.r; r < part.r + part.range.rows; ++r) {
    SecondSums tile;
    tile.w = strip_.tile_sums(r);
    tile.d_p = {tile.w.weight, static_cast<double>(d_p_center_[r]), static_cast<double>(d_p_sum_[r])};
    tile.z = {tile.w.weight, static_cast<double>(z_center_[r]), static_cast<double>(z_sum_[r])};
    tile.cross = static_cast<double>(cross_sum_[r]);
    sums_[static_cast<size_t>(r)].add(tile);
  }
}

template <class T>
SecondMeans<T> SecondTiles<T>::means(int64_t r) const {
  const Operand &d_lse = operands_.d_lse, &t_sinks = operands_.cotangents.sinks;
  const int64_t row = problem_.sequence(item_.b).q_begin + item_.first_row + r;
  return sums_[static_cast<size_t>(r)].means(
      strip_.weights(r), d_lse ? load_as_double(d_lse.dtype, d_lse.at(item_.b, item_.h, row, 0)) : 0.0,
      t_sinks ? load_as_double(t_sinks.dtype, t_sinks.at(0, item_.h, 0, 0)) : 0.0);
}

template <class T>
void SecondTiles<T>::set_means(int64_t r, const SecondMeans<T>& means) {
  strip_.set_mean(r, means.w);
  delta_[r] = means.delta.high;
  delta_low_[r] = means.delta.low;
  z_mean_[r] = means.z.high;
  z_mean_low_[r] = means.z.low;
  rest_[r] = means.rest;
}

template <class T>
SecondTile<T> SecondTiles<T>::run_gradients(StripPart<T>& part) {
  // Bits that other tiles have overwritten meanwhile; terms are not read any more.
  if (part.cover.visible != nullptr) part.cover = strip_.cover(part);
  const SecondTile<T> tile = make_tile(part);
  derivatives_.second_gradients(tile);
  return tile;
}

template <class T>
void SecondTiles<T>::add_row_sums(const SecondTile<T>& tile) {
  derivatives_.second_row_sums(tile);
}

template <class T>
void SecondTiles<T>::add_key_sums(const SecondTile<T>& tile, T* g_k, T* g_v) {
  SecondTile<T> keys = tile;
  keys.g_k = g_k;
  keys.g_v = g_v;
  derivatives_.second_key_sums(keys);
}

template <class T>
void SecondTiles<T>::store_rows(const RowItem& item) {
  const int64_t row = problem_.sequence(item.b).q_begin + item.first_row;
  for (int64_t r = 0; r < item.rows; ++r) {
    if (operands_.g_q) {
      store_row<T>(operands_.g_q, item.b, item.h, row + r, g_q_.get() + r * q_stride(), problem_.D,
                   static_cast<T>(problem_.scale));
    }
    if (operands_.g_d_out) {
      store_row<T>(operands_.g_d_out, item.b, item.h, row + r, g_d_out_.get() + r * v_stride_, problem_.Dv, T{1});
    }
  }
}

template class SecondTiles<float>;
template class SecondTiles<double>;

}  // namespace qkv
