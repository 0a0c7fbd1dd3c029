// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/problem.h"
#include "attention/rows.h"
#include "kernels/attention_kernels.h"
#include "support/aligned.h"

namespace qkv {

/// Key blocks of several tensors of a head (k, v and what they move along), packed as the kernels of derivatives read
/// them and kept while they fit a budget. One per worker.
template <class T>
class PackedBlocks {
 public:
  enum class Form : uint8_t {
    panels,  ///< [panel][columns][panel_width]
    rows,    ///< [keys, columns rounded up to a vector], finite
  };
  struct Source {
    Operand operand;  ///< absent: an absent block
    int64_t columns = 0;
    Form form = Form::panels;
  };
  struct Block {
    const T* data = nullptr;
    NonFiniteRows nonfinite;  ///< of rows
  };

  PackedBlocks(const Problem& problem, int64_t block_keys, std::vector<Source> sources, int64_t budget_bytes);
  /// The block `index` of a key/value head, one part for each source.
  const std::vector<Block>& block(int64_t b, int64_t hkv, int64_t index);

 private:
  struct Slot {
    int64_t b = -1;
    int64_t hkv = -1;
    int64_t index = -1;
    std::vector<Block> parts;
  };
  int64_t part_elements(const Source& source) const;
  void pack(Slot& slot, int64_t slot_number);

  const Problem& problem_;
  const AttentionKernels<T>& kernels_;
  int64_t block_keys_;
  std::vector<Source> sources_;
  int64_t slot_elements_ = 0;
  AlignedArray<T> memory_;
  AlignedArray<int64_t> nonfinite_rows_;
  std::vector<Slot> slots_;
};

}  // namespace qkv
