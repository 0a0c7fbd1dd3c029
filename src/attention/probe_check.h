// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/check.h"
#include "qkv/attention/probe.h"

namespace qkv {

/// Ranges within the problem, and weights of their shape. As an operand over (b, h, query, key) of the tile.
Operand check_weights(const Problem& problem, Range queries, Range keys, const TensorView& weights, int q_rank);

/// A query that some sequence has, and a number of keys whose results can be addressed.
void check_edges(const Problem& problem, int64_t query, int64_t count);

}  // namespace qkv
