// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "attention/pairs.h"
#include "attention/problem.h"
#include "attention/rows.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// One key block as the forward kernels read it.
template <class E>
struct PackedKeyBlock {
  const E* keys = nullptr;    ///< panels [panel][D][panel_width]
  const E* values = nullptr;  ///< [keys, value_stride], finite; in pairs of keys
  NonFiniteRows nonfinite;    ///< of the values
};

/// The packed key blocks of the head a worker is at, kept while they fit a fixed budget: rows of one head share them,
/// and long heads are packed again for each item of work instead of growing with the number of keys.
template <class T, class E = T>
class KeyCache {
 public:
  /// `need_values` false: scores only. Keeps at most `most_blocks`.
  KeyCache(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys, bool need_values,
           int64_t most_blocks = std::numeric_limits<int64_t>::max());
  const PackedKeyBlock<E>& block(int64_t b, int64_t hkv, int64_t index);
  int64_t value_stride() const { return value_stride_; }
  /// True when all blocks of the longest head fit, so that packing is paid once per head.
  static bool holds_whole_heads(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys);

 private:
  struct Slot {
    int64_t b = -1;
    int64_t hkv = -1;
    int64_t index = -1;
    PackedKeyBlock<E> packed;
  };
  static int64_t slot_elements(const Problem& problem, const AttentionKernels<T>& kernels, int64_t block_keys);
  void pack(Slot& slot, int64_t slot_number);
  const E* pack_keys(const Slot& slot, int64_t first, int64_t keys, E* to) const;

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  int64_t value_stride_;
  int64_t slot_elements_;
  bool need_values_;
  AlignedArray<E> memory_;
  AlignedArray<int64_t> nonfinite_rows_;
  std::vector<Slot> slots_;
};

}  // namespace qkv
