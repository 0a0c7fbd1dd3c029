// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "qkv/inspect/cost.h"

namespace qkv::cli {

/// What a model did.
struct Measured {
  std::string name;       ///< "forward" of an encoder; "prefill", "decode step"
  int64_t predicted = 0;  ///< multiply-accumulates
  int64_t counted = 0;    ///< the same, as kernels counted them
  int64_t score_entries = 0;
  double seconds = 0;       ///< median of a few runs
  int64_t cache_bytes = 0;  ///< after it; blocks of keys are whole
};

/// Runs the model of `folder`, or with an empty one random weights of `config`, on random tokens.
std::vector<Measured> measure_cost(const ModelConfig& config, const std::string& folder, const CostQuery& query,
                                   int threads);

}  // namespace qkv::cli
