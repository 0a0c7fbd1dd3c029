// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "qkv/tensor/tensor.h"

namespace qkv::cli {

/// Results by name.
using Arrays = std::map<std::string, Tensor>;

/// Where results go, by the ending of the path: one .safetensors file, the single array `out` as .npy, or else a folder
/// with one .npy file per array. Readers of the path see the old content or the new, never a part: everything is
/// written beside it first, then renamed. A folder that exists keeps its other files, and gets its old arrays back when
/// one of the renames fails.
class Output {
 public:
  enum class Kind : uint8_t { safetensors, npy, folder };
  /// Everything that can be refused before the work is done: an output equal to one of `inputs` (under any name), a
  /// folder where a file is asked for, no parent folder, bf16 for .npy. `arrays` hold what write() will write.
  Output(const std::string& path, const std::vector<std::string>& inputs, const Arrays& arrays);
  /// Throws SystemError when the machine refuses; the path is then as it was.
  void write(const Arrays& arrays) const;
  const std::string& path() const { return name_; }

 private:
  void check_place(const Arrays& arrays) const;
  void check_arrays(const Arrays& arrays) const;
  void check_inputs(const std::vector<std::string>& inputs, const Arrays& arrays) const;
  void write_folder(const Arrays& arrays) const;

  std::string name_;             ///< as given
  std::filesystem::path place_;  ///< what a symbolic link points to, without a trailing slash
  Kind kind_ = Kind::folder;
};

}  // namespace qkv::cli
