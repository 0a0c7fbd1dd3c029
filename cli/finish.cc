// SPDX-License-Identifier: Apache-2.0
#include "cli/check.h"
#include "cli/verbs.h"

namespace qkv::cli {

void finish(const Call& call, const ProblemFile& problem, const Arrays& results, const Output& output,
            const Summary& summary) {
  // What cannot be said is an error, and an error leaves no output: the summary comes first.
  print_summary(call, problem, results, summary);
  require_kept(summary.comparisons);
  output.write(results);
}

}  // namespace qkv::cli
