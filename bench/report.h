// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "timing.h"

namespace qkv::bench {

/// Another library that was asked.
struct PeerFacts {
  std::string engine, version;
  std::string absent;  ///< why it is not there; empty when it is
};

/// Everything a benchmark found, ready to print.
struct Report {
  MachineFacts facts;
  MachineSeries machine;
  int64_t read_buffer_bytes = 0;
  std::vector<PeerFacts> peers;
  std::vector<Run> runs;  ///< runs whose check failed have no seconds
};

/// One JSON object: `machine` and a list `runs`; times in seconds, rates a second, sizes in bytes.
/// A run that was not timed says why in `refused` or in its check.
nlohmann::json to_json(const Report& report);

}  // namespace qkv::bench
