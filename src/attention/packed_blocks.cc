// SPDX-License-Identifier: Apache-2.0
#include "attention/packed_blocks.h"

#include <algorithm>
#include <utility>

namespace qkv {

template <class T>
PackedBlocks<T>::PackedBlocks(const Problem& problem, int64_t block_keys, std::vector<Source> sources,
                              int64_t budget_bytes)
    : problem_(problem), kernels_(kernels().attention<T>()), block_keys_(block_keys), sources_(std::move(sources)) {
  for (const Source& source : sources_) slot_elements_ += part_elements(source);
  const int64_t blocks = ceil_divide(longest_keys(problem), block_keys);
  const int64_t bytes = std::max<int64_t>(slot_elements_ * static_cast<int64_t>(sizeof(T)), 1);
  const int64_t slots = std::clamp<int64_t>(budget_bytes / bytes, 1, std::max<int64_t>(blocks, 1));
  memory_ = AlignedArray<T>(slots * slot_elements_);
  nonfinite_rows_ = AlignedArray<int64_t>(slots * block_keys * static_cast<int64_t>(sources_.size()));
  slots_.resize(static_cast<size_t>(slots));
}

/// Short heads need no whole block.
template <class T>
int64_t PackedBlocks<T>::part_elements(const Source& source) const {
  if (!source.operand) return 0;
  const int64_t keys = round_up(std::min(block_keys_, longest_keys(problem_)), kernels_.panel_width);
  return round_up(keys * round_up(source.columns, kernels_.lanes), 64);
}

template <class T>
auto PackedBlocks<T>::block(int64_t b, int64_t hkv, int64_t index) -> const std::vector<Block>& {
  const int64_t number = index % static_cast<int64_t>(slots_.size());
  Slot& slot = slots_[static_cast<size_t>(number)];
  if (slot.b != b || slot.hkv != hkv || slot.index != index) {
    slot.b = b;
    slot.hkv = hkv;
    slot.index = index;
    pack(slot, number);
  }
  return slot.parts;
}

template <class T>
void PackedBlocks<T>::pack(Slot& slot, int64_t slot_number) {
  const Sequence& sequence = problem_.sequence(slot.b);
  const int64_t first = slot.index * block_keys_;
  const int64_t keys = std::min(block_keys_, sequence.Tk - first);
  T* to = memory_.get() + slot_number * slot_elements_;
  int64_t* found = nonfinite_rows_.get() + slot_number * block_keys_ * static_cast<int64_t>(sources_.size());
  slot.parts.assign(sources_.size(), {});
  for (size_t n = 0; n < sources_.size(); ++n, found += block_keys_) {
    const Source& source = sources_[n];
    if (!source.operand) continue;
    Block& part = slot.parts[n];
    const StoredRows stored =
        stored_rows(source.operand, slot.b, slot.hkv, sequence.k_begin + first, keys, source.columns);
    if (source.form == Form::panels) {
      kernels_.pack_panels(stored, to);
    } else {
      part.nonfinite = {stored, found, kernels_.pack_rows(stored, to, round_up(source.columns, kernels_.lanes), found)};
    }
    part.data = to;
    to += part_elements(source);
  }
}

template class PackedBlocks<float>;
template class PackedBlocks<double>;

}  // namespace qkv
