// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "qkv/tensor/tensor.h"

namespace qkv {

/// Opens a `.npy` file (versions 1 to 3, C and Fortran order, both byte orders). Native-endian data stays mapped and is
/// read when touched; big-endian or unaligned data is copied into memory. i8, u16, ... that DType lacks are refused by
/// name. The file must not be shortened in place while the tensor lives: touching what is gone is a bus error.
/// Throws SystemError when the file cannot be opened, Error when its content is wrong; messages start with the path.
Tensor read_npy(const std::string& path);
/// The same from memory, for tests and fuzzing. `name` starts the messages. The tensor shares nothing with `bytes`.
Tensor parse_npy(const void* bytes, size_t size, const std::string& name);
/// Writes beside `path` and renames. bf16 is refused: NumPy has no name for it.
void write_npy(const std::string& path, const TensorView& tensor);

}  // namespace qkv
