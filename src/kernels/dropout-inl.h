// SPDX-License-Identifier: Apache-2.0
// The decisions of qkv/support/random.h, one vector of keys at a time.
#if defined(QKV_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_DROPOUT_INL_H_
#undef QKV_DROPOUT_INL_H_
#else
#define QKV_DROPOUT_INL_H_
#endif

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

/// Some vectors at once: each is a chain of four multiplications, which the others hide.
constexpr int64_t kDropoutLanes = kLanes<uint32_t>;
constexpr int64_t kDropoutVectors = std::min<int64_t>(4, kWordBits / kDropoutLanes);

/// Bits of the keys [key, key + lanes * vectors), which share the high half of their position.
HWY_INLINE uint64_t KeptLanes(uint64_t row_key, uint64_t key, uint32_t threshold) {
  const Tag<uint32_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto mix = [](auto x) HWY_ATTR {
    const Tag<uint32_t> lanes;
    x = hn::Mul(x, hn::Set(lanes, 0x21F0AAADu));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    return hn::Mul(x, hn::Set(lanes, 0x735A2D97u));
  };
  const auto low = hn::Set(d, static_cast<uint32_t>(row_key));
  const auto high = hn::Set(d, static_cast<uint32_t>(row_key >> 32));
  const auto above = hn::Set(d, static_cast<uint32_t>(key >> 32) * 0x9E3779B9u);
  // Unsigned x < threshold as a signed comparison.
  const auto flip = hn::Set(d, 0x80000000u);
  const auto bound = hn::BitCast(di, hn::Set(d, threshold ^ 0x80000000u));
  uint64_t bits = 0;
#pragma GCC unroll 4
  for (int64_t v = 0; v < kDropoutVectors; ++v) {
    auto x = hn::Xor(hn::Iota(d, static_cast<uint32_t>(key) + static_cast<uint32_t>(v * kDropoutLanes)), low);
    x = hn::Add(x, above);
    x = mix(hn::Xor(x, hn::ShiftRight<16>(x)));
    x = hn::Xor(x, high);
    x = mix(hn::Xor(x, hn::ShiftRight<15>(x)));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    const auto dropped = hn::Lt(hn::BitCast(di, hn::Xor(x, flip)), bound);
    bits |= BitsOfLanes(di, hn::Not(dropped)) << (v * kDropoutLanes);
  }
  return bits;
}

/// `first_key` is a multiple of 64, so that no word crosses a multiple of 2^32.
inline void KeptBits(uint64_t row_key, int64_t first_key, uint32_t threshold, int64_t n, uint64_t* HWY_RESTRICT bits) {
  for (int64_t c = 0; c < n; c += kWordBits) {
    uint64_t word = 0;
    for (int64_t lane = 0; lane < kWordBits; lane += kDropoutVectors * kDropoutLanes) {
      word |= KeptLanes(row_key, static_cast<uint64_t>(first_key + c + lane), threshold) << lane;
    }
    if (n - c < kWordBits) word &= (uint64_t{1} << (n - c)) - 1;
    bits[c / kWordBits] = word;
  }
}

/// Keep factors r of one row for the vector that starts at column c.
template <class T>
HWY_INLINE Vector<T> DropoutFactors(const TileDropout<T>& dropout, int64_t row, int64_t c) {
  return hn::IfThenElseZero(LanesOfBits<T>(dropout.kept + row * dropout.stride, c), hn::Set(Tag<T>(), dropout.keep));
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_DROPOUT_INL_H_
