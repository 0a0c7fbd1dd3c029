// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/problem.h"

namespace qkv {

/// T5's bucket of the distance query position - key position. `buckets` >= 1 (even for bidirectional).
/// Raffel et al. 2020, section 2.1: half of the buckets are exact distances, the rest logarithmic up to max_distance.
///   bucket = exact + floor(log(d / exact) / log(max_distance / exact) * (count - exact)), at most count - 1
/// The floor is taken exactly: the largest n with (d/exact)^(count-exact) >= (max_distance/exact)^n.
int64_t relative_bucket(int64_t distance, int64_t buckets, const Buckets& rule);

/// ALiBi's term before the slope: -|query position - key position|.
inline double alibi_distance(int64_t distance) { return -std::fabs(static_cast<double>(distance)); }

}  // namespace qkv
