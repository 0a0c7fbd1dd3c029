// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "qkv/attention/attention.h"

namespace qkv {

/// Where statistics of the weights go; absent views are not wanted. Floating ones are f32 (f64 for f64 inputs).
/// Packed sequences: rows are [total_q, H], keys [total_k, H].
struct AttentionStatistics {
  MutableTensorView row_entropy = {};  ///< [B, H, Tq], nats, of the weights of the keys (a sink's share is left out)
  MutableTensorView row_max = {};      ///< [B, H, Tq], largest weight; 0 for an empty row
  MutableTensorView row_top = {};      ///< [B, H, Tq] i64, its key (the first of equals); -1 for an empty row
  MutableTensorView key_mass = {};     ///< [B, H, Tk], weights summed over queries in query order
};

/// Statistics by recomputing tiles; never a Tq x Tk array. Weights are those before dropout.
void attention_statistics(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options, const AttentionStatistics& statistics);

/// Half-open range of rows or keys.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

/// weights [B, H, queries, keys] of a tile, f32 (f64). Packed: [H, total rows in the range, ...] is refused.
void attention_weights(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       Range queries, Range keys, const MutableTensorView& weights);

/// What removing single keys would do to one query's output, for its `count` heaviest keys.
struct AttentionEdges {
  Tensor keys;        ///< [B, H, count] i64, heaviest first, ties by key; -1 where the row sees fewer
  Tensor zero_value;  ///< [B, H, count, Dv]: -a_j v_j, the change of out when v_j becomes zero
  Tensor hide_key;    ///< [B, H, count, Dv]: a_j/(1-a_j) (out - v_j), the change when key j is hidden
};
AttentionEdges attention_edges(const TensorView& q, const TensorView& k, const TensorView& v,
                               const AttentionOptions& options, int64_t query, int64_t count);

}  // namespace qkv
