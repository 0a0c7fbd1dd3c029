// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "qkv/tensor/tensor.h"

namespace qkv {

/// The content of one `.safetensors` file: named tensors over a shared read-only mapping, and string metadata.
struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Maps the file; nothing but the header (and unaligned tensors, which are copied) is read until data is touched. The
/// file must not be shortened in place while a tensor lives: touching what is gone is a bus error. Throws SystemError
/// when the file cannot be opened, Error naming the key when the content is wrong.
TensorFile read_safetensors(const std::string& path);
/// The same from memory, for tests and fuzzing. Tensors are copies.
TensorFile parse_safetensors(const void* bytes, size_t size, const std::string& name);
/// Writes beside `path` and renames, so that a reader sees the old file or the new one, whole.
void write_safetensors(const std::string& path, const std::map<std::string, TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace qkv
