// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/score_sums.h"
#include "attention/second_tiles.h"

namespace qkv {

/// The strips and key blocks of second order: four forms of k and v with their cotangents twice, and a, w, dP and z.
template <class T>
StripPlan second_strip_plan(const Problem& problem);

/// The gradient of a bias with both its query and key axis that heads or batch entries share: tile by tile, the
/// gradients of scores are computed again and summed over those in order, in the compute type. `means` are those of all
/// rows (contiguous rows).
template <class T>
void second_bias_gradient(const Problem& problem, const BucketMap& buckets, const SecondOperands& operands,
                          const ScoreSums<T>& sums, const std::vector<SecondMeans<T>>& means);

}  // namespace qkv
