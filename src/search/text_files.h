// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::search {

/// 64 bits that depend on every byte, for telling whether something has changed; nobody is kept from finding equals.
uint64_t digest(std::string_view bytes, uint64_t seed = 0);

struct FoundFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::filesystem::path> unreadable;  ///< folders that cannot be entered, files that cannot be reached
};

/// The regular files that paths name or that lie in folders they name, absolute, without symbolic links, ascending,
/// each once. In folders names that begin with a dot are left out, and folders that are links are not entered. Throws
/// SystemError for a path that does not exist.
FoundFiles find_files(const std::vector<std::string>& paths);

/// Without a zero byte, and valid UTF-8.
bool is_text(std::string_view bytes);

}  // namespace qkv::search
