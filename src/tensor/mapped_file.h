// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace qkv {

/// A whole file as read-only memory. Pages are read when they are touched. Whoever shortens the file meanwhile makes a
/// later touch beyond the new end a bus error, as for every mapping: replace files by renaming, as FileWriter does.
class MappedFile {
 public:
  /// Throws SystemError when `path` cannot be opened, is not a regular file, or cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const void* data, size_t size) : data_(data), size_(size) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return static_cast<const char*>(data_); }
  size_t size() const { return size_; }

 private:
  const void* data_;  ///< page-aligned; nothing is mapped for an empty file
  size_t size_;
};

}  // namespace qkv
