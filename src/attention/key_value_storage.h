// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "kernels/attention_kernels.h"
#include "qkv/attention/key_value_cache.h"
#include "support/aligned.h"

namespace qkv {

/// Keys and values of one block of a sequence, all heads: for each head panels of keys, then rows of values.
///
/// Panels are [panel][words][panel_width]; a word holds one key's element, of bf16 and f16 two consecutive ones, the
/// first in its lower half (the upper half is 0 past an odd width). Rows of values are padded with zeros to whole
/// vectors of the compute type.
struct KeyValueBlock {
  int64_t capacity = 0;  ///< keys: whole panels
  AlignedArray<char> memory;
};

struct KeyValueCache::Storage {
  struct Sequence {
    int64_t length = 0;
    std::vector<std::shared_ptr<KeyValueBlock>> blocks;
  };

  const KernelSet* set = nullptr;
  DType dtype = DType::f32;
  int64_t kv_heads = 0, D = 0, Dv = 0;
  int64_t block_keys = 0;    ///< keys of a full block: those of a forward block
  int64_t panel_width = 0;   ///< keys
  int64_t value_stride = 0;  ///< elements of a row of values
  int64_t words = 0;         ///< of a key
  int64_t word_size = 0;     ///< bytes
  std::vector<Sequence> sequences;

  int64_t key_bytes() const { return words * word_size; }
  int64_t value_bytes() const { return value_stride * size_of(dtype); }
  /// Where the panels of a head begin; its values follow.
  char* keys(const KeyValueBlock& block, int64_t head) const {
    return block.memory.get() + head * block.capacity * (key_bytes() + value_bytes());
  }
  char* values(const KeyValueBlock& block, int64_t head) const {
    return keys(block, head) + block.capacity * key_bytes();
  }
  const KeyValueBlock& block(int64_t sequence, int64_t index) const {
    return *sequences[static_cast<size_t>(sequence)].blocks[static_cast<size_t>(index)];
  }
  StoredPanels panels(const KeyValueBlock& block, int64_t head) const { return {keys(block, head), dtype, D}; }
  /// `count` values of a head from the block's first on, padding included.
  StoredRows value_rows(const KeyValueBlock& block, int64_t head, int64_t count) const {
    return {values(block, head), dtype, value_stride, 1, count, value_stride};
  }
};

}  // namespace qkv
