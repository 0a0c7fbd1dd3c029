// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/backward_rows.h"
#include "attention/score_sums.h"

namespace qkv {

/// The gradient of a bias with both its Tq and Tk axes that is shared by heads or batch entries. Each of its tiles is
/// summed over those in order, in the compute type, and rounded once: two more products per tile instead of an array in
/// the compute type beside the gradient. E as in BackwardTiles.
template <class T, class E>
void broadcast_bias_gradient(const Problem& problem, const BucketMap& buckets, const BackwardRows<T>& rows,
                             const ScoreSums<T>& sums);

}  // namespace qkv
