// SPDX-License-Identifier: Apache-2.0
// Yes or no for each pair of a tile, as bits: made from masks, ids, terms and the generator of dropout, and read back
// as lanes. A word of 64 columns costs one load and one comparison per vector, whatever is decided.
#if defined(QKV_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_BITS_INL_H_
#undef QKV_BITS_INL_H_
#else
#define QKV_BITS_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
constexpr T kHidden = -std::numeric_limits<T>::infinity();

constexpr int64_t kWordBits = 64;

/// Bits of one row as the lanes of the vector that starts at column c.
template <class T>
HWY_INLINE hn::Mask<Tag<T>> LanesOfBits(const uint64_t* bits, int64_t c) {
  const auto column = static_cast<uint64_t>(c);
  const uint64_t word = bits[column / kWordBits] >> (column % kWordBits);
  uint8_t bytes[sizeof(word)];
  std::memcpy(bytes, &word, sizeof(word));
  return hn::LoadMaskBits(Tag<T>(), bytes);
}

HWY_INLINE bool BitAt(const uint64_t* bits, int64_t c) {
  const auto column = static_cast<uint64_t>(c);
  return (bits[column / kWordBits] >> (column % kWordBits) & 1) != 0;
}

/// The bits of lanes, from bit 0 on.
template <class D>
HWY_INLINE uint64_t BitsOfLanes(D d, hn::Mask<D> lanes) {
  uint8_t bytes[sizeof(uint64_t)] = {};
  hn::StoreMaskBits(d, lanes, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

/// Where `test` holds for 64 elements.
template <class T, class Test>
HWY_INLINE uint64_t BitsOfWord(const T* HWY_RESTRICT elements, Test test) {
  const hn::ScalableTag<T> d;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(d));
  static_assert(kWordBits % kStep == 0);
  uint64_t word = 0;
  for (int64_t lane = 0; lane < kWordBits; lane += kStep) {
    word |= BitsOfLanes(d, test(hn::LoadU(d, elements + lane))) << lane;
  }
  return word;
}

/// Where `test` holds for the elements of a row.
template <class T, class Test>
HWY_INLINE void BitsOfRow(const T* HWY_RESTRICT row, int64_t n, uint64_t* HWY_RESTRICT bits, Test test) {
  int64_t c = 0;
  for (; c + kWordBits <= n; c += kWordBits) *bits++ = BitsOfWord(row + c, test);
  if (c == n) return;
  HWY_ALIGN T rest[kWordBits] = {};
  std::copy(row + c, row + n, rest);
  *bits = BitsOfWord(rest, test) & ((uint64_t{1} << (n - c)) - 1);
}

inline void NonzeroBits(const uint8_t* bytes, int64_t n, uint64_t* bits) {
  const auto zero = hn::Zero(hn::ScalableTag<uint8_t>());
  BitsOfRow(bytes, n, bits, [zero](auto x) HWY_ATTR { return hn::Not(hn::Eq(x, zero)); });
}

inline void EqualBits(const int64_t* ids, int64_t id, int64_t n, uint64_t* bits) {
  const auto same = hn::Set(hn::ScalableTag<int64_t>(), id);
  BitsOfRow(ids, n, bits, [same](auto x) HWY_ATTR { return hn::Eq(x, same); });
}

/// A term of NaN is shown.
template <class T>
void ShownBits(const T* terms, int64_t n, uint64_t* bits) {
  const auto hidden = hn::Set(Tag<T>(), kHidden<T>);
  BitsOfRow(terms, n, bits, [hidden](auto x) HWY_ATTR { return hn::Not(hn::Eq(x, hidden)); });
}

/// A sum of terms: -inf in either hides, whatever the other is; a sum of finite numbers stays finite, however low.
template <class T>
void AddTerms(T* HWY_RESTRICT terms, const T* HWY_RESTRICT more, int64_t n) {
  const T lowest = std::numeric_limits<T>::lowest();
  for (int64_t c = 0; c < n; ++c) {
    const T sum = terms[c] + more[c];
    const T raised = sum < lowest ? lowest : sum;
    terms[c] = terms[c] == kHidden<T> || more[c] == kHidden<T> ? kHidden<T> : raised;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_BITS_INL_H_
