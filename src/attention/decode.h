// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/forward_results.h"

namespace qkv {

/// True when the rows that share a key/value head are so few that reading keys and values is what counts.
bool has_few_queries(const Problem& problem);

/// The forward pass of such a problem, with operands of E: the same bits as by items of rows.
template <class T, class E>
void forward_few_queries(const Problem& problem, const ForwardResults<T>& results, int threads);

}  // namespace qkv
