// SPDX-License-Identifier: Apache-2.0
//
// The accuracy promise for a test's problem:
//
//   AttentionReference ours = ...;                        // results of the library, as tensors
//   for (const Comparison& c : compare(problem, ours)) EXPECT_TRUE(c.holds()) << c.text();
#pragma once

#include <vector>

#include "problems.h"
#include "qkv/attention/accuracy.h"

namespace qkv::test {

using Comparison = AccuracyComparison;
using qkv::largest_error;

/// Compares whatever tensors `results` holds (absent ones are skipped). Gradients are those of problem.d_out and d_lse.
std::vector<Comparison> compare(const TestProblem& problem, const AttentionReference& results);

}  // namespace qkv::test
