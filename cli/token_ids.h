// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qkv::cli {

/// Token ids, decimal, with blanks or one comma between. Throws Error for anything else.
std::vector<uint32_t> read_ids(const std::string& text);

}  // namespace qkv::cli
