// SPDX-License-Identifier: Apache-2.0
// Any bytes are a .safetensors file or are refused in a sentence; what was read, written and read again, is the same.
#include <cstddef>
#include <cstdint>
#include <map>

#include "fuzz.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qkv::TensorFile read;
  try {
    read = qkv::parse_safetensors(data, size, "x");
  } catch (const qkv::SystemError&) {
    qkv::must(false);  // nothing here needs more memory than the file has bytes
  } catch (const qkv::Error& error) {
    qkv::must_be_a_sentence(error.what(), "x: ");
    return 0;
  }
  std::map<std::string, qkv::TensorView> views;
  for (const auto& [name, tensor] : read.tensors) views[name] = tensor.view();
  std::string file = qkv::safetensors_preamble(views, read.metadata, "again");
  for (const std::string& name : qkv::safetensors_order(views)) file += qkv::row_major_bytes(views.at(name));

  const qkv::TensorFile again = qkv::parse_safetensors(file.data(), file.size(), "again");
  qkv::must(again.metadata == read.metadata && again.tensors.size() == read.tensors.size());
  for (const auto& [name, tensor] : read.tensors) {
    const qkv::Tensor& other = again.tensors.at(name);
    qkv::must(other.dtype() == tensor.dtype() && other.shape() == tensor.shape());
    qkv::must(qkv::row_major_bytes(other.view()) == qkv::row_major_bytes(tensor.view()));
  }
  return 0;
}
