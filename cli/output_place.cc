// SPDX-License-Identifier: Apache-2.0
#include "cli/output_place.h"

#include <system_error>

#include "qkv/support/error.h"
#include "qkv/tensor/staging_folder.h"

namespace qkv::cli {

void check_output_place(const std::string& name, const std::filesystem::path& place) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(place, error)) return;
  const fs::path parent = folder_around(place);
  if (!fs::exists(parent, error)) throw SystemError(concat(name, ": no such folder: ", parent.string()));
  require(fs::is_directory(parent, error), name, ": ", parent.string(), " is not a folder");
}

}  // namespace qkv::cli
