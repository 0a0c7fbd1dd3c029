// SPDX-License-Identifier: Apache-2.0
// Elements as they are stored, to lanes of the compute type, in registers.
#if defined(QKV_STORED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_STORED_INL_H_
#undef QKV_STORED_INL_H_
#else
#define QKV_STORED_INL_H_
#endif

#include "kernels/attention_kernels.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// f16, in the low half of each lane, to f32: the exponent moves up by the difference of the biases; subnormals come
/// out right because the scaling is a product of normal numbers, infinity and NaN keep the largest exponent.
template <class V>
HWY_INLINE Vector<float> WidenHalfBits(V bits) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f)));
  const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7F800000u));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x7BFFu));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, scaled)));
}

// What each dtype offers: Element; kParts, how many elements lie in the space of one T; `load`, one vector of
// consecutive elements; `part`, element `n` of each lane of vectors that hold kParts elements a lane.

/// Elements of the compute type.
template <class T>
struct StoredWhole {
  using Element = T;
  static constexpr int kParts = 1;
  static HWY_INLINE Vector<T> load(const T* from) { return hn::LoadU(Tag<T>(), from); }
  template <int n>
  static HWY_INLINE Vector<T> part(Vector<T> words) {
    return words;
  }
};

struct StoredBFloat16 {
  using Element = uint16_t;
  static constexpr int kParts = 2;
  static HWY_INLINE Vector<float> load(const uint16_t* from) {
    const hn::RebindToUnsigned<Tag<float>> du;
    const hn::Rebind<uint16_t, Tag<float>> dh;
    return hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
  }
  template <int n>
  static HWY_INLINE Vector<float> part(Vector<float> words) {
    const hn::RebindToUnsigned<Tag<float>> du;
    const auto bits = hn::BitCast(du, words);
    return hn::BitCast(Tag<float>(), n == 0 ? hn::ShiftLeft<16>(bits) : hn::And(bits, hn::Set(du, 0xFFFF0000u)));
  }
};

struct StoredFloat16 {
  using Element = uint16_t;
  static constexpr int kParts = 2;
  static HWY_INLINE Vector<float> load(const uint16_t* from) {
    const hn::RebindToUnsigned<Tag<float>> du;
    const hn::Rebind<uint16_t, Tag<float>> dh;
    return WidenHalfBits(hn::PromoteTo(du, hn::LoadU(dh, from)));
  }
  template <int n>
  static HWY_INLINE Vector<float> part(Vector<float> words) {
    const hn::RebindToUnsigned<Tag<float>> du;
    const auto bits = hn::BitCast(du, words);
    return WidenHalfBits(n == 0 ? hn::And(bits, hn::Set(du, 0xFFFFu)) : hn::ShiftRight<16>(bits));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_STORED_INL_H_
