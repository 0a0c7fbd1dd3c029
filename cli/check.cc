// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"

#include <algorithm>

#include "qkv/support/error.h"

namespace qkv::cli {

std::vector<AccuracyComparison> check_results(const ProblemFile& problem, const AttentionOptions& options,
                                              const Arrays& results) {
  const auto result = [&](const char* name) {
    const auto found = results.find(name);
    return found == results.end() ? Tensor() : found->second;
  };
  const AttentionReference ours{.out = result("out"),
                                .lse = result("lse"),
                                .d_q = result("d_q"),
                                .d_k = result("d_k"),
                                .d_v = result("d_v"),
                                .d_bias = result("d_bias"),
                                .d_slopes = result("d_slopes"),
                                .d_table = result("d_table"),
                                .d_sinks = result("d_sinks"),
                                .d_scale = result("d_scale")};
  return attention_accuracy(problem["q"], problem["k"], problem["v"], options, ours, problem["d_out"],
                            problem["d_lse"]);
}

bool all_kept(const std::vector<AccuracyComparison>& comparisons) {
  return std::all_of(comparisons.begin(), comparisons.end(), [](const AccuracyComparison& one) { return one.holds(); });
}

void require_kept(const std::vector<AccuracyComparison>& comparisons) {
  for (const AccuracyComparison& one : comparisons) {
    if (!one.holds()) throw SystemError(concat("check: ", one.text()));
  }
}

}  // namespace qkv::cli
