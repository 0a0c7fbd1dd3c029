// SPDX-License-Identifier: Apache-2.0
// Merging: what a row needs of a block of keys is a triple (its maximum m, sum l of exponentials, unnormalised output
// O), and triples merge. Blocks merge in key order, so the result does not depend on who computed them.
#if defined(QKV_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_MERGE_INL_H_
#undef QKV_MERGE_INL_H_
#else
#define QKV_MERGE_INL_H_
#endif

#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// exp(m - larger): what a triple of maximum m is multiplied by.
template <class T>
HWY_INLINE T FactorTo(T larger, T m) {
  if (m == larger) return T{1};
  if (m == -std::numeric_limits<T>::infinity()) return T{0};
  return hn::GetLane(ExpNonPositive<T>(hn::Set(Tag<T>(), m - larger)));
}

/// (m, l, O) of row r merged with its block's triple: both are brought to the larger maximum and added. A triple of an
/// empty row is (-inf, 0, 0) and changes nothing.
template <class T>
HWY_INLINE void MergeRow(const Triples<T>& into, int64_t r, T block_m, T block_l, const T* HWY_RESTRICT block_out) {
  const Tag<T> d;
  const T m = into.m[r];
  const T larger = m < block_m ? block_m : m;
  const T old_factor = FactorTo(larger, m);
  const T block_factor = FactorTo(larger, block_m);
  into.m[r] = larger;
  into.l[r] = into.l[r] * old_factor + block_l * block_factor;
  T* HWY_RESTRICT out = into.out + r * into.stride;
  for (int64_t c = 0; c < into.stride; c += kLanes<T>) {
    const auto kept = hn::Mul(hn::LoadU(d, out + c), hn::Set(d, old_factor));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, block_out + c), hn::Set(d, block_factor), kept), d, out + c);
  }
}

template <class T>
void MergeRows(const Triples<T>& block, const Triples<T>& into, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) MergeRow(into, r, block.m[r], block.l[r], block.out + r * block.stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_MERGE_INL_H_
