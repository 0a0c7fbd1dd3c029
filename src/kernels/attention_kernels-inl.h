// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set and compute type.
#if defined(QKV_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ATTENTION_KERNELS_INL_H_
#undef QKV_ATTENTION_KERNELS_INL_H_
#else
#define QKV_ATTENTION_KERNELS_INL_H_
#endif

#include "kernels/attention_backward-inl.h"
#include "kernels/attention_decode-inl.h"
#include "kernels/attention_forward-inl.h"
#include "kernels/pack-inl.h"
#include "kernels/panels-inl.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
void ExpOfArray(const T* x, T* y, int64_t n) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    const auto count = FirstLanes(d, n - i);
    HWY_ALIGN T part[kLanes<T>] = {};
    std::copy_n(x + i, std::min(n - i, kLanes<T>), part);
    hn::Store(ExpNonPositive<T>(hn::Load(d, part)), d, part);
    hn::BlendedStore(hn::Load(d, part), count, d, y + i);
  }
}

template <class T>
void TanhOfArray(const T* x, T* y, int64_t n) {
  const Tag<T> d;
  for (int64_t i = 0; i < n; i += kLanes<T>) {
    HWY_ALIGN T part[kLanes<T>] = {};
    std::copy_n(x + i, std::min(n - i, kLanes<T>), part);
    Vector<T> derivative;
    hn::BlendedStore(Tanh<T>(hn::Load(d, part), derivative), FirstLanes(d, n - i), d, y + i);
  }
}

template <class T>
constexpr AttentionKernels<T> MakeAttentionKernels() {
  return {
      .lanes = kLanes<T>,
      .panel_width = kPanel<T>,
      .pack_rows = PackRows<T>,
      .pack_panels = PackPanels<T>,
      .store_rows = StoreRows<T>,
      .widen_panels = WidenPanels<T>,
      .nonzero_bits = NonzeroBits,
      .equal_bits = EqualBits,
      .shown_bits = ShownBits<T>,
      .kept_bits = KeptBits,
      .add_terms = AddTerms<T>,
      .score_tile = ScoresOfTile<T>,
      .forward_tile = ForwardOfTile<T>,
      .decode_block = DecodeBlock<T>,
      .merge_rows = MergeRows<T>,
      .backward_tile = BackwardOfTile<T>,
      .query_gradients = QueryGradients<T>,
      .all_finite = AllFinite<T>,
      .exp = ExpOfArray<T>,
      .tanh = TanhOfArray<T>,
  };
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ATTENTION_KERNELS_INL_H_
