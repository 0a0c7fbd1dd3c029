// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv {

struct SafetensorsEntry {
  DType dtype = DType::f32;
  Dims shape;
  size_t begin = 0;  ///< of its data, from the start of the file
};

/// What stands before the data of a `.safetensors` file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the header and checks that the tensors tile the data, from its first byte to its last. Throws Error that names
/// the key; `file` starts the messages.
SafetensorsHeader parse_safetensors_header(const char* bytes, size_t size, const std::string& file);

/// Names in the order in which the tensors are stored: wide elements first, so that every one of them is aligned.
std::vector<std::string> safetensors_order(const std::map<std::string, TensorView>& tensors);
/// The length and the header, padded with blanks to a multiple of 8, for tensors stored in the order of
/// safetensors_order(). Throws Error for names that cannot be written.
std::string safetensors_preamble(const std::map<std::string, TensorView>& tensors,
                                 const std::map<std::string, std::string>& metadata, const std::string& file);

}  // namespace qkv
