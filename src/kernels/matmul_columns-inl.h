// SPDX-License-Identifier: Apache-2.0
// A product of few rows with a matrix whose columns are contiguous, straight from where it lies: no sum knows that B
// was not copied to panels.
#if defined(QKV_MATMUL_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MATMUL_COLUMNS_INL_H_
#undef QKV_MATMUL_COLUMNS_INL_H_
#else
#define QKV_MATMUL_COLUMNS_INL_H_
#endif

#include <algorithm>

#include "kernels/squares-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// At most as many columns as there are lanes: where they begin. Lanes past the end repeat the last one.
template <class Element>
HWY_INLINE void BeginColumns(const StoredRows& columns, const Element* (&begin)[kLanes<float>], int64_t lanes) {
  for (int64_t l = 0; l < lanes; ++l) {
    begin[l] = static_cast<const Element*>(columns.data) + std::min(l, columns.rows - 1) * columns.row_stride;
  }
}

template <class Stored, class T>
HWY_NOINLINE void ProductOfStoredColumns(const ScoreTile<T>& product, const StoredRows& columns) {
  const typename Stored::Element* begin[kLanes<float>];
  BeginColumns(columns, begin, kLanes<T>);
  EachAhead ahead;
  ForRowRuns(product.rows, ScoreRun<Stored, T, EachAhead>{product, begin, 0, ahead});
}

template <class T>
void ProductOfColumns(const ScoreTile<T>& product, const StoredRows& columns) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (columns.dtype == DType::bf16) return ProductOfStoredColumns<StoredBFloat16, T>(product, columns);
    if (columns.dtype == DType::f16) return ProductOfStoredColumns<StoredFloat16, T>(product, columns);
  }
  ProductOfStoredColumns<StoredWhole<T>, T>(product, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MATMUL_COLUMNS_INL_H_
