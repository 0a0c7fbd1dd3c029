// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "qkv/tensor/tensor.h"

namespace qkv {

/// What a fuzzer finds is a trap, in every build.
inline void must(bool condition) {
  if (!condition) std::abort();
}

/// A refusal is one printable line that begins with the name of the file.
inline void must_be_a_sentence(std::string_view message, std::string_view name) {
  must(message.substr(0, name.size()) == name);
  for (const char c : message) must(c >= 0x20 && c <= 0x7E);
}

/// The elements as a file holds them.
inline std::string row_major_bytes(const TensorView& view) {
  const Tensor rows = [&] {
    Tensor result(view.dtype(), view.shape());
    copy(view, result.mutable_view());
    return result;
  }();
  return {static_cast<const char*>(rows.view().data()), static_cast<size_t>(view.elements() * size_of(view.dtype()))};
}

}  // namespace qkv
