// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace qkv::cli {

/// The files of a model's folder, which no output may replace.
std::vector<std::string> model_files(const std::string& folder);

}  // namespace qkv::cli
