// SPDX-License-Identifier: Apache-2.0
#include "attention/key_cache.h"

#include <algorithm>

#include "attention/key_value_storage.h"

namespace qkv {
namespace {

/// Packed keys and values one worker keeps: measured at T = 2048, D = 64 (1 MiB a head) packing is then paid once per
/// head; a multiple of L2, because blocks are read in order and L3 keeps up with one block at a time.
constexpr int64_t kBudget = int64_t{4} << 20;

}  // namespace

template <class T, class E>
int64_t KeyCache<T, E>::slot_elements(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys) {
  // Short heads need no whole block.
  const int64_t keys = round_up(std::min(block_keys, longest_keys(problem)), kernels.panel_width);
  const int64_t values = ceil_divide(keys, kElements<T, E>) * round_up(problem.Dv, kernels.lanes);
  return round_up(keys * width_in<T, E>(problem.D) + values, 64);
}

template <class T, class E>
bool KeyCache<T, E>::holds_whole_heads(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys) {
  const int64_t blocks = ceil_divide(longest_keys(problem), block_keys);
  return blocks * slot_elements(problem, kernels, block_keys) * static_cast<int64_t>(sizeof(E)) <= kBudget;
}

template <class T, class E>
KeyCache<T, E>::KeyCache(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys,
                         bool need_values, int64_t most_blocks)
    : problem_(problem),
      kernels_(kernels),
      block_keys_(block_keys),
      value_stride_(round_up(problem.Dv, kernels.lanes)),
      slot_elements_(slot_elements(problem, kernels, block_keys)),
      need_values_(need_values) {
  const int64_t blocks = std::min(ceil_divide(longest_keys(problem), block_keys), most_blocks);
  const int64_t bytes = std::max<int64_t>(slot_elements_ * static_cast<int64_t>(sizeof(E)), 1);
  const int64_t slots = std::clamp<int64_t>(kBudget / bytes, 1, std::max<int64_t>(blocks, 1));
  memory_ = AlignedArray<E>(slots * slot_elements_, kUninitialised);
  nonfinite_rows_ = AlignedArray<int64_t>(slots * block_keys);
  slots_.resize(static_cast<size_t>(slots));
}

template <class T, class E>
const PackedKeyBlock<E>& KeyCache<T, E>::block(int64_t b, int64_t hkv, int64_t index) {
  const int64_t number = index % static_cast<int64_t>(slots_.size());
  Slot& slot = slots_[static_cast<size_t>(number)];
  if (slot.b != b || slot.hkv != hkv || slot.index != index) {
    slot.b = b;
    slot.hkv = hkv;
    slot.index = index;
    pack(slot, number);
  }
  return slot.packed;
}

/// `keys` keys from `first` on, to `to` unless a cache has them in this form.
template <class T, class E>
const E* KeyCache<T, E>::pack_keys(const Slot& slot, int64_t first, int64_t keys, E* to) const {
  if (problem_.cache == nullptr) {
    const int64_t row = problem_.sequence(slot.b).k_begin + first;
    pack_panels(stored_rows(problem_.k, slot.b, slot.hkv, row, keys, problem_.D), to);
    return to;
  }
  const StoredPanels panels = problem_.cache->panels(problem_.cache->block(slot.b, slot.index), slot.hkv);
  if constexpr (kInPairs<T, E>) {
    return static_cast<const E*>(panels.data);
  } else {
    if (panels.dtype == DTypeOf<T>::value) return static_cast<const E*>(panels.data);
    kernels_.widen_panels(panels, keys, to);
    return to;
  }
}

template <class T, class E>
void KeyCache<T, E>::pack(Slot& slot, int64_t slot_number) {
  const Sequence& sequence = problem_.sequence(slot.b);
  const int64_t first = slot.index * block_keys_;
  const int64_t keys = std::min(block_keys_, sequence.Tk - first);
  E* packed_keys = memory_.get() + slot_number * slot_elements_;
  slot.packed.keys = pack_keys(slot, first, keys, packed_keys);
  if (!need_values_) return;
  const StoredRows stored =
      problem_.cache != nullptr
          ? problem_.cache->value_rows(problem_.cache->block(slot.b, slot.index), slot.hkv, keys)
          : stored_rows(problem_.v, slot.b, slot.hkv, sequence.k_begin + first, keys, problem_.Dv);
  if constexpr (!kInPairs<T, E>) {
    if (lies_as_packed<T>(stored, value_stride_) &&
        kernels_.all_finite(static_cast<const T*>(stored.data), keys * value_stride_)) {
      slot.packed.nonfinite = {};
      slot.packed.values = static_cast<const T*>(stored.data);
      return;
    }
  }
  E* values = packed_keys + round_up(keys, kernels_.panel_width) * width_in<T, E>(problem_.D);
  int64_t* found = nonfinite_rows_.get() + slot_number * block_keys_;
  slot.packed.nonfinite = pack_streamed_rows(stored, values, value_stride_, found);
  slot.packed.values = values;
}

template class KeyCache<float>;
template class KeyCache<double>;
template class KeyCache<float, BFloat16Pair>;

}  // namespace qkv
