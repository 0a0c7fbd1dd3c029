// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "work.h"

namespace qkv::bench {

/// Forward mode and second order of a case, into t_out, and d_q, d_k, d_v.
/// The forward pass with lse, from the cache where the case has one.
void run_forward(Inputs& inputs, const AttentionOptions& options);
void run_jvp(Inputs& inputs, const AttentionOptions& options, const AttentionState& state);
void run_second(Inputs& inputs, const AttentionOptions& options, const AttentionState& state, const TensorView& d_out);

/// Runs the case with every number of threads, which must all give the same bits, and holds it against the reference on
/// the rows of a sample. Gradients are taken again for each part of the sample with an upstream that is zero outside of
/// it, for which the reference needs only its rows.
Verdict verify(Inputs& inputs, const Work& work, const std::vector<int>& threads);

}  // namespace qkv::bench
