// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv {

/// Writes a file beside its final place and renames it there, so that a reader sees the old file or the new one, whole.
/// Unless commit() returns, nothing stays behind and an existing file keeps its content. An existing file keeps its
/// permissions; a symbolic link keeps pointing, its target is replaced. A device or pipe is written to directly.
/// Every failure is a SystemError that starts with the path.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void append(const void* bytes, size_t size);
  void append(std::string_view text) { append(text.data(), text.size()); }
  /// The elements of a tensor in row-major order; truth values as 0 and 1.
  void append(const TensorView& tensor);
  /// Flushes, closes and renames.
  void commit();

 private:
  void open_beside(unsigned mode);
  void write_out(const char* bytes, size_t size);
  void flush();
  void discard();
  [[noreturn]] void refuse(int error) const;

  std::string path_;       ///< as the caller wrote it, for messages
  std::string target_;     ///< with symbolic links resolved
  std::string temporary_;  ///< empty when the target is written directly, and after the rename
  int descriptor_ = -1;
  std::vector<char> buffer_;
};

}  // namespace qkv
