// SPDX-License-Identifier: Apache-2.0
#include "accuracy.h"

namespace qkv::test {

std::vector<Comparison> compare(const TestProblem& problem, const AttentionReference& results) {
  const bool gradients = results.d_q || results.d_scale;
  return attention_accuracy(problem.q, problem.k, problem.v, problem.options, results,
                            gradients ? problem.d_out : TensorView(), gradients ? problem.d_lse : TensorView());
}

}  // namespace qkv::test
