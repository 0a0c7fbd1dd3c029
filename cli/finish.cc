// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {

void finish(const Call& call, const ProblemFile& problem, const Arrays& results, const Output& output,
            const Summary& summary) {
  const bool passed = all_kept(summary.comparisons);
  if (passed) output.write(results);
  print_summary(call, problem, results, summary);
  require_kept(summary.comparisons);
}

}  // namespace qkv::cli
