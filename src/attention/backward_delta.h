// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/backward_rows.h"
#include "attention/relative_terms.h"

namespace qkv {

/// Replaces delta of the rows whose keys lie in several key blocks, as `dO . out` gives it, by the sum that it stands
/// for. Where weights are rounded for `out`, delta shares that: as good as rounding dS for d_q and d_k, too much for
/// gradients that are sums over unrounded dS alone. Two products a pair more.
template <class T, class E>
void sum_deltas_anew(const Problem& problem, const BucketMap& buckets, BackwardRows<T>& rows);

}  // namespace qkv
