// SPDX-License-Identifier: Apache-2.0
#include "cli/model_files.h"

#include <filesystem>
#include <system_error>

namespace qkv::cli {

std::vector<std::string> model_files(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;  // a folder that cannot be read is refused where its config.json is
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    files.push_back(entry->path().string());
  }
  return files;
}

}  // namespace qkv::cli
