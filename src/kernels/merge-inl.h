// SPDX-License-Identifier: Apache-2.0
// Merging: what a row needs of a block of keys is a triple (its maximum m, sum l of exponentials, unnormalised output
// O), and triples merge. Blocks merge in key order, so the result does not depend on who computed them.
#if defined(QKV_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MERGE_INL_H_
#undef QKV_MERGE_INL_H_
#else
#define QKV_MERGE_INL_H_
#endif

#include <algorithm>

#include "kernels/attention_kernels.h"
#include "kernels/bits-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// exp(m - larger): what a triple of maximum m is multiplied by.
template <class T>
HWY_INLINE Vector<T> FactorTo(Vector<T> larger, Vector<T> m) {
  return hn::IfThenElse(hn::Eq(m, larger), hn::Set(Tag<T>(), T{1}), ExpNonPositive<T>(hn::Sub(m, larger)));
}

/// What the outputs of some rows and of their block are multiplied by before they are added; one number per row.
template <class T>
struct MergeFactors {
  static constexpr int64_t kRows = PaddedRows<T>(kForwardRows);
  HWY_ALIGN T old[kRows];
  HWY_ALIGN T block[kRows];
};

/// The first `n` elements, zeros behind them.
template <class T>
HWY_INLINE Vector<T> LoadRows(const T* from, int64_t n) {
  if (n >= kLanes<T>) return hn::LoadU(Tag<T>(), from);
  HWY_ALIGN T part[kLanes<T>] = {};
  std::copy_n(from, n, part);
  return hn::Load(Tag<T>(), part);
}

/// (m, l) of at most kForwardRows rows merged with their block's: both are brought to the larger maximum and added.
/// `first`: the rows have met no block, as if they held the triple (-inf, 0, 0) of an empty row, which changes nothing.
template <class T>
HWY_INLINE void MergeSums(const T* block_m, const T* block_l, int64_t rows, bool first, T* HWY_RESTRICT m,
                          T* HWY_RESTRICT l, MergeFactors<T>& factors) {
  const Tag<T> d;
  for (int64_t r = 0; r < rows; r += kLanes<T>) {
    const auto inside = FirstLanes(d, rows - r);
    const auto old_m = first ? hn::Set(d, kHidden<T>) : LoadRows(m + r, rows - r);
    const auto old_l = first ? hn::Zero(d) : LoadRows(l + r, rows - r);
    const auto new_m = LoadRows(block_m + r, rows - r);
    const auto larger = hn::IfThenElse(hn::Lt(old_m, new_m), new_m, old_m);
    const auto old_factor = FactorTo<T>(larger, old_m);
    const auto block_factor = FactorTo<T>(larger, new_m);
    const auto sum = hn::MulAdd(LoadRows(block_l + r, rows - r), block_factor, hn::Mul(old_l, old_factor));
    hn::Store(old_factor, d, factors.old + r);
    hn::Store(block_factor, d, factors.block + r);
    hn::BlendedStore(larger, inside, d, m + r);
    hn::BlendedStore(sum, inside, d, l + r);
  }
}

/// The sums of rounded weights, with the factors of MergeSums.
template <class T>
HWY_INLINE void MergeWeightSums(const T* block_sum, int64_t rows, bool first, const MergeFactors<T>& factors,
                                T* HWY_RESTRICT weight_sum) {
  const Tag<T> d;
  for (int64_t r = 0; r < rows; r += kLanes<T>) {
    const auto old_sum = first ? hn::Zero(d) : LoadRows(weight_sum + r, rows - r);
    const auto old_share = hn::Mul(old_sum, hn::Load(d, factors.old + r));
    const auto sum = hn::MulAdd(LoadRows(block_sum + r, rows - r), hn::Load(d, factors.block + r), old_share);
    hn::BlendedStore(sum, FirstLanes(d, rows - r), d, weight_sum + r);
  }
}

/// One vector of O.
template <class T>
HWY_INLINE Vector<T> MergeOutput(Vector<T> old, Vector<T> block, T old_factor, T block_factor) {
  const Tag<T> d;
  return hn::MulAdd(block, hn::Set(d, block_factor), hn::Mul(old, hn::Set(d, old_factor)));
}

/// Triples of rows that were computed by themselves.
template <class T>
void MergeRows(const Triples<T>& block, const Triples<T>& into, int64_t rows) {
  const Tag<T> d;
  MergeFactors<T> factors;
  for (int64_t first = 0; first < rows; first += kForwardRows) {
    const int64_t count = std::min(kForwardRows, rows - first);
    MergeSums(block.m + first, block.l + first, count, false, into.m + first, into.l + first, factors);
    if (into.weight_sum != nullptr) {
      MergeWeightSums(block.weight_sum + first, count, false, factors, into.weight_sum + first);
    }
    for (int64_t r = 0; r < count; ++r) {
      T* HWY_RESTRICT out = into.out + (first + r) * into.stride;
      const T* HWY_RESTRICT block_out = block.out + (first + r) * block.stride;
      for (int64_t c = 0; c < into.stride; c += kLanes<T>) {
        const auto merged =
            MergeOutput(hn::LoadU(d, out + c), hn::LoadU(d, block_out + c), factors.old[r], factors.block[r]);
        hn::StoreU(merged, d, out + c);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MERGE_INL_H_
