// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace qkv {

/// A new, empty, hidden folder in which files are written before they take their place; it goes away with everything in
/// it that has not been moved. Its name begins with ".qkv-", the process id and "-".
class StagingFolder {
 public:
  /// Inside `parent`. Throws SystemError when it cannot be created.
  explicit StagingFolder(const std::filesystem::path& parent);
  ~StagingFolder();
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The folder itself becomes `place`, which lies on the same file system.
  void become(const std::filesystem::path& place);

 private:
  std::filesystem::path path_;
};

/// The folder that an entry at `path` lies in.
std::filesystem::path folder_around(const std::filesystem::path& path);

}  // namespace qkv
