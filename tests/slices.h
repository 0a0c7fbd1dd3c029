// SPDX-License-Identifier: Apache-2.0
//
// Parts of a problem as problems of their own, over the same memory: one batch entry, a run of queries.
#pragma once

#include "problems.h"

namespace qkv::test {

/// [begin, end) of one axis; axes of size 1 that stand for many (broadcast) stay whole when `broadcast`.
TensorView slice(const TensorView& view, int axis, int64_t begin, int64_t end, bool broadcast = false);

/// What the operation is called with.
struct Call {
  TensorView q, k, v, d_out, d_lse;
  AttentionOptions options;
};
Call whole(const TestProblem& problem);

/// Batch entry b of a problem of rank 4, alone.
Call batch_entry(const TestProblem& problem, int64_t b);

/// Queries [begin, end) of a problem that is not packed, placed among the keys where they were. `begin` is a multiple
/// of the block mask's rows.
Call query_chunk(const TestProblem& problem, int64_t begin, int64_t end);

}  // namespace qkv::test
