// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set.
#if defined(QKV_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_VECTOR_INL_H_
#undef QKV_VECTOR_INL_H_
#else
#define QKV_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));

/// The register tile: kTileRows broadcast operands times kTileVectors streamed ones. Accumulators, streamed vectors and
/// one broadcast must fit the registers: 6 * 4 + 4 + 1 of 32, or 6 * 2 + 2 + 1 of 16.
constexpr int kTileRows = 6;
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif

/// Keys in a packed panel: the lanes of one register tile.
template <class T>
constexpr int64_t kPanel = kTileVectors* kLanes<T>;

/// All lanes below n.
template <class D>
HWY_INLINE hn::Mask<D> FirstLanes(D d, int64_t n) {
  return hn::FirstN(d, static_cast<size_t>(n < 0 ? 0 : n));
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_VECTOR_INL_H_
