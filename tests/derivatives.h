// SPDX-License-Identifier: Apache-2.0
//
// Forward mode and second order under test, run on a TestProblem.
#pragma once

#include "directions.h"
#include "operation.h"

namespace qkv::test {

/// Results as row-major tensors. Fails the current test when an element was not written or memory beside the outputs
/// was.
AttentionJvpReference run_jvp(const Call& call, const AttentionTangents& tangents, const RunOptions& run = {});
inline AttentionJvpReference run_jvp(const TestProblem& problem, const Directions& directions,
                                     const RunOptions& run = {}) {
  return run_jvp(whole(problem), directions.tangents, run);
}

/// The same of second order.
AttentionSecondReference run_second(const Call& call, const AttentionCotangents& cotangents,
                                    const RunOptions& run = {});
inline AttentionSecondReference run_second(const TestProblem& problem, const Directions& directions,
                                           const RunOptions& run = {}) {
  return run_second(whole(problem), directions.cotangents(), run);
}

/// Names of the results whose bits differ, or "" when all agree.
std::string different_bits(const AttentionJvpReference& a, const AttentionJvpReference& b);
std::string different_bits(const AttentionSecondReference& a, const AttentionSecondReference& b);

}  // namespace qkv::test
