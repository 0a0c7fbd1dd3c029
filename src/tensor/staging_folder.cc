// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/staging_folder.h"

#include <unistd.h>

#include <system_error>

#include "qkv/support/error.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;

void check(const std::error_code& error, const fs::path& path) {
  if (error) throw SystemError(concat(path.string(), ": cannot create this folder: ", error.message()));
}

}  // namespace

StagingFolder::StagingFolder(const fs::path& parent) {
  std::error_code error;
  for (int number = 0; number < 1000; ++number) {  // another one may have a name here
    path_ = parent / concat(".qkv-", ::getpid(), "-", number);
    if (fs::create_directory(path_, error)) return;
    check(error, path_);
  }
  throw SystemError(concat(path_.string(), ": cannot create this folder: it exists"));
}

StagingFolder::~StagingFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void StagingFolder::become(const fs::path& place) {
  std::error_code error;
  fs::rename(path_, place, error);
  check(error, place);
}

fs::path folder_around(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace qkv
