// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "timing.h"

namespace qkv::bench {

/// Everything a benchmark found, ready to print.
struct Report {
  MachineFacts facts;
  MachineSeries machine;
  int64_t read_buffer_bytes = 0;
  std::vector<Run> runs;  ///< runs whose check failed have no seconds
};

/// One JSON object: `machine` and a list `runs`; times in seconds, rates a second, sizes in bytes.
nlohmann::json to_json(const Report& report);

/// A heading with the machine, a table of the machine's limits and one of the runs, from what `to_json` gives.
std::string to_markdown(const nlohmann::json& report);

}  // namespace qkv::bench
