// SPDX-License-Identifier: Apache-2.0
// Layer norm and RMS norm of rows.
//
//   layer:  y = (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) w + b
//   rms:    y = x / sqrt(mean of x^2 + epsilon) w + b
//
// A row is read four times while it lies in L1: its sum; the sum of deviations from that mean, which gives what
// rounding took from the mean (the difference of close numbers is exact); the squares of deviations from both parts;
// the result. So the deviations of a row with a large mean are as exact as the row itself, and a variance is never a
// difference.
//
// Sums run in four vectors of lanes, columns in turn, combined in one order: the width and the lanes fix it.
#if defined(QKV_NORMALIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_NORMALIZE_INL_H_
#undef QKV_NORMALIZE_INL_H_
#else
#define QKV_NORMALIZE_INL_H_
#endif

#include <cmath>

#include "kernels/layer_kernels.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// The sum of term(c), a vector of columns from c on, over a row; columns beyond it do not count.
template <class T, class Term>
HWY_INLINE T SumOfRow(int64_t columns, const Term& term) {
  const Tag<T> d;
  constexpr int64_t N = kLanes<T>;
  Vector<T> sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t c = 0;
  for (; c + 4 * N <= columns; c += 4 * N) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) sums[i] = hn::Add(sums[i], term(c + i * N));
  }
  for (; c + N <= columns; c += N) sums[0] = hn::Add(sums[0], term(c));
  if (c < columns) sums[1] = hn::Add(sums[1], hn::IfThenElseZero(FirstLanes(d, columns - c), term(c)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

template <class T>
HWY_INLINE int64_t WholeVectors(int64_t columns) {
  return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

/// The mean of a row in two parts.
template <class T>
struct TwoPartMean {
  T high = 0;
  T low = 0;
  HWY_INLINE Vector<T> deviation(Vector<T> x) const {
    const Tag<T> d;
    return hn::Sub(hn::Sub(x, hn::Set(d, high)), hn::Set(d, low));
  }
};

template <class T>
HWY_INLINE TwoPartMean<T> MeanOfRow(const T* HWY_RESTRICT x, int64_t columns) {
  const Tag<T> d;
  TwoPartMean<T> mean;
  const T count = static_cast<T>(columns);
  mean.high = SumOfRow<T>(columns, [=](int64_t c) HWY_ATTR { return hn::LoadU(Tag<T>(), x + c); }) / count;
  const auto high = hn::Set(d, mean.high);
  mean.low =
      SumOfRow<T>(columns, [=](int64_t c) HWY_ATTR { return hn::Sub(hn::LoadU(Tag<T>(), x + c), high); }) / count;
  return mean;
}

/// 1 / sqrt(mean of (x - mean)^2 + epsilon).
template <class T>
HWY_INLINE T InverseOfRow(const T* HWY_RESTRICT x, int64_t columns, const TwoPartMean<T>& mean, T epsilon) {
  const T squares = SumOfRow<T>(columns, [&](int64_t c) HWY_ATTR {
    const auto deviation = mean.deviation(hn::LoadU(Tag<T>(), x + c));
    return hn::Mul(deviation, deviation);
  });
  return T{1} / std::sqrt(squares / static_cast<T>(columns) + epsilon);
}

template <class T>
void Normalize(const NormalizeRows<T>& n) {
  const Tag<T> d;
  const int64_t columns = n.x.columns;
  const int64_t padded = WholeVectors<T>(columns);
  T* x_row = n.scratch;
  T* residual_row = x_row + padded;
  T* y_row = residual_row + padded;
  for (int64_t r = 0; r < n.x.rows; ++r) {
    const T* x = RowOf<T>(n.x, r, columns, padded, x_row);
    const T* residual = n.residual.data == nullptr ? nullptr : RowOf<T>(n.residual, r, columns, padded, residual_row);
    TwoPartMean<T> mean;
    if (n.subtracts_mean) mean = MeanOfRow<T>(x, columns);
    const T inverse = InverseOfRow<T>(x, columns, mean, n.epsilon);
    if (n.mean != nullptr && n.subtracts_mean) {
      n.mean[r] = mean.high;
      n.mean_low[r] = mean.low;
    }
    if (n.inverse != nullptr) n.inverse[r] = inverse;
    const auto scale = hn::Set(d, inverse);
    for (int64_t c = 0; c < padded; c += kLanes<T>) {
      auto y = hn::Mul(mean.deviation(hn::LoadU(d, x + c)), scale);
      if (n.weight != nullptr) y = hn::Mul(y, hn::LoadU(d, n.weight + c));
      if (n.bias != nullptr) y = hn::Add(y, hn::LoadU(d, n.bias + c));
      if (residual != nullptr) y = hn::Add(y, hn::LoadU(d, residual + c));
      hn::StoreU(y, d, y_row + c);
    }
    StoreRow<T>(y_row, columns, TargetRow(n.y, r));
  }
}

/// xhat = (x - mean) inverse, g = d_y w:  d_x = inverse (g - mean(g) - xhat mean(g xhat)) + residual.
template <class T>
void NormalizeBackward(const NormalizeRowsBackward<T>& n) {
  const Tag<T> d;
  const int64_t columns = n.x.columns;
  const int64_t padded = WholeVectors<T>(columns);
  T* x_row = n.scratch;
  T* d_y_row = x_row + padded;
  T* residual_row = d_y_row + padded;
  T* d_x_row = residual_row + padded;
  for (int64_t r = 0; r < n.x.rows; ++r) {
    const T* x = RowOf<T>(n.x, r, columns, padded, x_row);
    const T* d_y = RowOf<T>(n.d_y, r, columns, padded, d_y_row);
    TwoPartMean<T> mean;
    if (n.mean != nullptr) mean = {n.mean[r], n.mean_low[r]};
    const auto inverse = hn::Set(d, n.inverse[r]);
    const auto xhat = [&](int64_t c) HWY_ATTR { return hn::Mul(mean.deviation(hn::LoadU(Tag<T>(), x + c)), inverse); };
    const auto g = [&](int64_t c) HWY_ATTR {
      const auto upstream = hn::LoadU(Tag<T>(), d_y + c);
      return n.weight == nullptr ? upstream : hn::Mul(upstream, hn::LoadU(Tag<T>(), n.weight + c));
    };
    if (n.d_weight != nullptr) {
      for (int64_t c = 0; c < padded; c += kLanes<T>) {
        const auto sum = hn::MulAdd(hn::LoadU(d, d_y + c), xhat(c), hn::LoadU(d, n.d_weight + c));
        hn::StoreU(sum, d, n.d_weight + c);
      }
    }
    if (n.d_bias != nullptr) {
      for (int64_t c = 0; c < padded; c += kLanes<T>) {
        hn::StoreU(hn::Add(hn::LoadU(d, d_y + c), hn::LoadU(d, n.d_bias + c)), d, n.d_bias + c);
      }
    }
    if (n.d_x.data == nullptr) continue;
    const T count = static_cast<T>(columns);
    const auto mean_g = hn::Set(d, n.mean == nullptr ? T{0} : SumOfRow<T>(columns, g) / count);
    const auto product = [&](int64_t c) HWY_ATTR { return hn::Mul(hn::Sub(g(c), mean_g), xhat(c)); };
    const auto mean_product = hn::Set(d, SumOfRow<T>(columns, product) / count);
    const T* residual = n.residual.data == nullptr ? nullptr : RowOf<T>(n.residual, r, columns, padded, residual_row);
    for (int64_t c = 0; c < padded; c += kLanes<T>) {
      auto d_x = hn::Mul(inverse, hn::NegMulAdd(xhat(c), mean_product, hn::Sub(g(c), mean_g)));
      if (residual != nullptr) d_x = hn::Add(d_x, hn::LoadU(d, residual + c));
      hn::StoreU(d_x, d, d_x_row + c);
    }
    StoreRow<T>(d_x_row, columns, TargetRow(n.d_x, r));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_NORMALIZE_INL_H_
