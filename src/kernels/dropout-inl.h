// SPDX-License-Identifier: Apache-2.0
// The decisions of qkv/support/random.h, one vector of keys at a time.
#if defined(QKV_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_DROPOUT_INL_H_
#undef QKV_DROPOUT_INL_H_
#else
#define QKV_DROPOUT_INL_H_
#endif

#include "kernels/attention_kernels.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Keep factors r of dropout for one vector of columns starting at key position `key`.
template <class T>
HWY_INLINE Vector<T> DropoutFactors(const TileDropout<T>& dropout, int64_t row, int64_t column) {
  const Tag<T> d;
  const hn::Rebind<uint32_t, Tag<T>> du;
  const hn::RebindToSigned<decltype(du)> di;
  const uint64_t row_key = dropout.row_keys[row];
  const auto key = static_cast<uint64_t>(dropout.first_key + column);
  const auto mix = [](auto x) HWY_ATTR {
    const hn::Rebind<uint32_t, Tag<T>> lanes;
    x = hn::Mul(x, hn::Set(lanes, 0x21F0AAADu));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    return hn::Mul(x, hn::Set(lanes, 0x735A2D97u));
  };
  auto x = hn::Xor(hn::Iota(du, static_cast<uint32_t>(key)), hn::Set(du, static_cast<uint32_t>(row_key)));
  x = hn::Add(x, hn::Set(du, static_cast<uint32_t>(key >> 32) * 0x9E3779B9u));
  x = mix(hn::Xor(x, hn::ShiftRight<16>(x)));
  x = hn::Xor(x, hn::Set(du, static_cast<uint32_t>(row_key >> 32)));
  x = mix(hn::Xor(x, hn::ShiftRight<15>(x)));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  // Unsigned x < threshold as a signed comparison.
  const auto flip = hn::Set(du, 0x80000000u);
  const auto dropped =
      hn::Lt(hn::BitCast(di, hn::Xor(x, flip)), hn::BitCast(di, hn::Xor(hn::Set(du, dropout.threshold), flip)));
  const auto keep = hn::Set(d, dropout.keep);
  if constexpr (sizeof(T) == sizeof(float)) {
    return hn::IfThenZeroElse(hn::RebindMask(d, dropped), keep);
  } else {
    const hn::RebindToSigned<Tag<T>> dw;
    const auto wide = hn::PromoteTo(dw, hn::VecFromMask(di, dropped));
    return hn::IfThenZeroElse(hn::RebindMask(d, hn::MaskFromVec(wide)), keep);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_DROPOUT_INL_H_
