// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace qkv::bench {

/// A heading with the machine, a table of the machine's limits, one of the runs, and one that sets other libraries
/// beside qkv if there were any, from what `to_json` gives.
std::string to_markdown(const nlohmann::json& report);

}  // namespace qkv::bench
