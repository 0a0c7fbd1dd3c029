// SPDX-License-Identifier: Apache-2.0
// The share of NaN, infinities and whatever else packed operands hold as 0, in the products it was taken out of.
#if defined(QKV_NONFINITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_NONFINITE_INL_H_
#undef QKV_NONFINITE_INL_H_
#else
#define QKV_NONFINITE_INL_H_
#endif

#include <cmath>
#include <type_traits>

#include "kernels/attention_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// True where an operand of elements E holds the value itself, not 0.
template <class E, class T>
HWY_INLINE bool IsPacked(T value) {
  if constexpr (std::is_same_v<E, BFloat16Pair>) {
    const float magnitude = std::fabs(value);
    return value == 0 || (magnitude >= kSmallestPaired && magnitude <= kLargestPaired);
  } else {
    return std::isfinite(value);
  }
}

/// Adds the share of what is missing in one row of a streamed operand to a row of sums.
template <class E, class T>
HWY_INLINE void AddNonFiniteRow(const NonFiniteRows& items, int64_t n, T weight, T* HWY_RESTRICT sums) {
  const StoredRows& source = items.source;
  for (int64_t c = 0; c < source.columns; ++c) {
    const int64_t element = items.rows[n] * source.row_stride + c * source.column_stride;
    const T value = load_as<T>(source.dtype, static_cast<const char*>(source.data) + element * size_of(source.dtype));
    if (!IsPacked<E>(value)) sums[c] += weight * value;
  }
}

template <class T, class E>
HWY_INLINE bool PairVisible(const ScoreTile<T, E>& tile, int64_t r, int64_t c) {
  return !HasHidden(tile, c) || BitAt(tile.visible + r * tile.visible_stride, c);
}

/// Element n of a row.
template <class T>
HWY_INLINE T ElementOf(const T* row, int64_t n) {
  return row[n];
}
HWY_INLINE float ElementOf(const BFloat16Pair* row, int64_t n) {
  return to_float(BFloat16{static_cast<uint16_t>(row[n / 2].bits >> (n % 2 * 16))});
}

/// sums[r] += weights[r, key] * streamed[key] for the listed keys. A row of weights, of T or in pairs, takes
/// scores_stride of them.
template <class T, class E, class W>
HWY_NOINLINE void AddNonFiniteKeys(const ScoreTile<T, E>& tile, const NonFiniteRows& items, const W* weights, T* sums,
                                   int64_t sums_stride) {
  for (int64_t n = 0; n < items.count; ++n) {
    const int64_t key = items.rows[n];
    if (key < tile.begin || key >= tile.end) continue;
    for (int64_t r = 0; r < tile.rows; ++r) {
      if (!PairVisible(tile, r, key)) continue;
      AddNonFiniteRow<E>(items, n, ElementOf(weights + r * tile.scores_stride, key), sums + r * sums_stride);
    }
  }
}

/// sums[key] += weights[query, key] * streamed[query] for the listed queries.
template <class T, class E>
HWY_NOINLINE void AddNonFiniteQueries(const ScoreTile<T, E>& tile, const NonFiniteRows& items, const T* weights,
                                      T* sums, int64_t sums_stride) {
  for (int64_t n = 0; n < items.count; ++n) {
    const int64_t r = items.rows[n] - items.first_row;
    if (r < 0 || r >= tile.rows) continue;
    for (int64_t key = tile.begin; key < tile.end; ++key) {
      if (!PairVisible(tile, r, key)) continue;
      AddNonFiniteRow<E>(items, n, weights[r * tile.scores_stride + key], sums + key * sums_stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_NONFINITE_INL_H_
