// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "work.h"

namespace qkv::bench {

/// The result of a check against the f64 reference by the library's own rule (qkv/attention/accuracy.h). A ratio is the
/// largest error of a result over the largest error of the plain formula on the same rows.
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

/// Runs the case with every number of threads, which must all give the same bits, and holds it against the reference on
/// the rows of a sample. Gradients are taken again for each part of the sample with an upstream that is zero outside of
/// it, for which the reference needs only its rows.
Verdict verify(Inputs& inputs, const Work& work, const std::vector<int>& threads);

}  // namespace qkv::bench
