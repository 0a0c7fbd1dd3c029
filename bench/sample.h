// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "work.h"

namespace qkv::bench {

/// Queries [i, i + rows) of batch entries [b, b + entries), or of packed sequence b.
struct Chunk {
  int64_t b = 0, entries = 1;
  int64_t i = 0, rows = 0;
};

/// The part of an array that belongs to a chunk.
TensorView cut(const TensorView& view, int axis, int64_t begin, int64_t size);
MutableTensorView cut(const MutableTensorView& view, int axis, int64_t begin, int64_t size);

/// Queries of a case whose evaluation by the definition costs about `operations`: everything when that suffices, else
/// the first, middle and last queries of the first and last batch entries.
std::vector<Chunk> sample(const Inputs& inputs, const Work& work, double operations);
bool covers_everything(const Inputs& inputs, const std::vector<Chunk>& chunks);

/// The problem that has only the queries of a chunk and all keys: causal and positional offsets move with the queries,
/// so that its rows are the same rows as in the whole.
struct Part {
  Part(const Inputs& inputs, const Chunk& chunk);
  Chunk chunk;
  TensorView q, k, v, d_out;  ///< rank 4
  AttentionOptions options;

 private:
  Tensor query_lengths_;
};

/// Views of a chunk's share of whole arrays, rank 4 (lse: rank 3), in the same order as the part's results.
MutableTensorView queries_of(const Inputs& inputs, const Chunk& chunk, const MutableTensorView& whole);
MutableTensorView keys_of(const Inputs& inputs, const Chunk& chunk, const MutableTensorView& whole);
MutableTensorView bias_of(const Chunk& chunk, const MutableTensorView& whole);

}  // namespace qkv::bench
