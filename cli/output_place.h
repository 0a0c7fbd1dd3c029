// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace qkv::cli {

/// Refuses an output that does not exist yet where there is no folder to put it in; `name` is what the caller gave.
void check_output_place(const std::string& name, const std::filesystem::path& place);

}  // namespace qkv::cli
