// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "cli/numbers.h"
#include "cli/output.h"
#include "cli/problem_file.h"
#include "qkv/attention.h"

namespace qkv::cli {

/// --check of attend and grad: holds out, lse and the gradients among `results` against the f64 reference. Slow.
std::vector<AccuracyComparison> check_results(const ProblemFile& problem, const AttentionOptions& options,
                                              const Arrays& results);

/// --check of probe: holds the statistics and the tile of weights likewise. How removing a key changes out follows from
/// these and is not compared.
std::vector<AccuracyComparison> check_probes(const ProblemFile& problem, AttentionOptions options,
                                             const Arrays& results, const std::optional<Tile>& tile);

/// Throws SystemError with a sentence about the first comparison that broke the promise, if one did.
void require_kept(const std::vector<AccuracyComparison>& comparisons);
bool all_kept(const std::vector<AccuracyComparison>& comparisons);

}  // namespace qkv::cli
