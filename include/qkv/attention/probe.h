// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/attention/attention.h"

namespace qkv {

// What the weights of an attention look like, by recomputing them tile by tile: there never is a Tq x Tk array, and
// extra memory is O(Tq + Tk) per head.
//
// Inputs, options and errors are those of attention_forward; outputs must not overlap inputs, each other or themselves,
// and nothing is written before every check has passed. Floating results are f32, or f64 for f64 inputs. Results do not
// depend on the number of threads.
//
// Weights are a_ij = exp(s_ij - m_i) / l_i over the visible keys of query i, before dropout. The share of a sink stays
// in l_i but is nobody's: with one the weights of a row add up to less than 1. A hidden pair has weight 0 whatever is
// stored there. In a row that a visible NaN makes NaN the weights of all visible keys are NaN; other rows know nothing
// of it.

/// Where statistics of the weights go; absent views are not wanted.
/// Shapes below are for rank 4; ranks 3 and 2 drop the batch, then the heads. Packed sequences: [total_q, H] for rows,
/// [total_k, H] for keys.
struct AttentionStatistics {
  /// [B, H, Tq], nats: sum_j -a_ij log a_ij over the visible keys. 0 for an empty row, NaN for a NaN row.
  MutableTensorView row_entropy = {};
  /// [B, H, Tq]: the largest weight of a key. 0 for an empty row, NaN for a NaN row.
  MutableTensorView row_max = {};
  /// [B, H, Tq] i64: the key of the largest score, the first of equals; counted within its sequence when packed. -1 for
  /// an empty row. In a NaN row, whose weights are equally NaN, the first visible key.
  MutableTensorView row_top = {};
  /// [B, H, Tk]: weights summed over queries in query order, in f64, rounded once. NaN where a NaN row sees the key.
  MutableTensorView key_mass = {};
};

/// The statistics that are wanted. The values in v do not matter.
void attention_statistics(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options, const AttentionStatistics& statistics);

/// Half-open range of queries or keys.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The weights of a tile, [B, H, queries, keys]; ranks 3 and 2 drop the batch, then the heads. Ranges must lie within
/// 0..Tq and 0..Tk. The values in v do not matter. Packed sequences are refused: their rows share no keys, so no tile
/// covers them.
void attention_weights(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       Range queries, Range keys, const MutableTensorView& weights);

/// What removing single keys would do to the output of one query, for its `count` heaviest keys in every head.
/// Ranks 3 and 2 drop the batch, then the heads. Packed: B is the number of sequences, queries and keys count within
/// each, and a sequence without that query gives an empty row.
struct AttentionEdges {
  /// [B, H, count] i64: by falling score, equals by key (a NaN row: by key). -1 where the row sees fewer keys.
  Tensor keys;
  /// [B, H, count, Dv]: -a_j v_j, the change of out when the value of key j becomes zero. 0 where there is no key.
  Tensor zero_value;
  /// [B, H, count, Dv]: a_j/(1-a_j) (out - v_j), the change of out when key j is hidden; -out when it is the only
  /// visible key. 0 where there is no key. Computed without forming 1 - a_j, which cancels for a key that is almost
  /// alone.
  Tensor hide_key;
};

/// With dropout v_j reads r_j v_j in both effects, so that they remain the changes of what attention_forward gives.
/// `query` lies in 0..Tq - 1 (of the longest sequence when packed), `count` is not negative.
AttentionEdges attention_edges(const TensorView& q, const TensorView& k, const TensorView& v,
                               const AttentionOptions& options, int64_t query, int64_t count);

}  // namespace qkv
