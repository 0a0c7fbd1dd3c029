// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/problem_file.h"

namespace qkv::cli {

/// What a verb did, for the reader.
struct Summary {
  std::string verb;
  std::string target;
  double seconds = 0;
  std::vector<AccuracyComparison> comparisons = {};  ///< of --check
};

/// Prints the summary on standard output: a few lines, or one JSON object with --json.
void print_summary(const Call& call, const ProblemFile& problem, const Arrays& results, const Summary& summary);
/// Prints text on standard output; throws SystemError when it does not arrive.
void print(const std::string& text);

}  // namespace qkv::cli
