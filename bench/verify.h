// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "work.h"

namespace qkv::bench {

/// The result of a check against the f64 reference. A ratio is the largest error of a result over the largest error of
/// the plain formula on the same rows; promise 3 of docs/semantics.md bounds it by 2 (out, lse) and 3 (gradients), plus
/// a few units in the last place.
struct Verdict {
  struct Ratio {
    double value = 0;
    std::string what;  ///< the result it belongs to
  };
  bool passed = true;
  bool checked = false;
  Ratio forward;        ///< the larger of out's and lse's
  Ratio backward;       ///< the largest of the gradients'
  std::string scope;    ///< what was compared
  std::string failure;  ///< the first comparison that failed, with its numbers
};

/// Runs the case once with every number of threads and compares with the reference.
/// out and lse: on the rows of a sample. Gradients: d_q on the rows of a sample; then every gradient of a second call
/// whose upstream is zero outside of these rows, for which the reference needs only these rows.
/// All numbers of threads must give the same bits.
Verdict verify(Inputs& inputs, const Work& work, const std::vector<int>& threads);

}  // namespace qkv::bench
