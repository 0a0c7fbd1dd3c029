// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

/// One tensor as the JSON says it, before anything is checked against anything else.
struct RawEntry {
  bool has_dtype = false, has_shape = false, has_offsets = false;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
};

struct RawHeader {
  std::map<std::string, RawEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON of a `.safetensors` header as a stream: nothing is built but what RawHeader holds, and duplicate
/// keys, depth and the form of numbers are seen as written. Throws Error; `file` starts the messages.
RawHeader parse_safetensors_json(std::string_view json, const std::string& file);

}  // namespace qkv
