// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "qkv/tensor/view.h"

namespace qkv {

/// What stands before the data of a `.npy` file.
struct NpyHeader {
  DType dtype = DType::f32;
  bool swapped = false;  ///< big-endian
  bool fortran = false;  ///< first axis fastest
  Dims shape;
  size_t data_begin = 0;
};

/// Reads the header and checks that exactly the right number of bytes follows it. Throws Error; `file` starts the
/// messages.
NpyHeader parse_npy_header(const char* bytes, size_t size, const std::string& file);
/// Magic, version 1.0 and the header of a little-endian row-major array, padded so that data starts at a multiple
/// of 64. bf16 has no name in NumPy and must not come here.
std::string npy_preamble(DType dtype, const Dims& shape);

}  // namespace qkv
