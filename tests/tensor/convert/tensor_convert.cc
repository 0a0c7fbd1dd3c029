// SPDX-License-Identifier: Apache-2.0
// For tests/python/test_files.py: reads a file as qkv does and writes it as qkv does.
//   tensor_convert IN OUT    .npy or .safetensors each; a single array is called `array` where it needs a name.
// Exit code 1 when the machine refuses, 2 when the content is wrong; the message goes to stderr.
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "qkv/support/error.h"
#include "qkv/tensor/npy.h"
#include "qkv/tensor/safetensors.h"

namespace {

bool is_npy(std::string_view path) { return path.ends_with(".npy"); }

void convert(const std::string& in, const std::string& out) {
  qkv::TensorFile file;
  if (is_npy(in)) {
    file.tensors["array"] = qkv::read_npy(in);
  } else {
    file = qkv::read_safetensors(in);
  }
  if (is_npy(out)) {
    qkv::require(file.tensors.count("array") == 1, in, ": has no tensor \"array\"");
    return qkv::write_npy(out, file.tensors.at("array").view());
  }
  std::map<std::string, qkv::TensorView> views;
  for (const auto& [name, tensor] : file.tensors) views[name] = tensor.view();
  qkv::write_safetensors(out, views, file.metadata);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: tensor_convert IN OUT\n", stderr);
    return 2;
  }
  try {
    convert(arguments[1], arguments[2]);
  } catch (const qkv::SystemError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  } catch (const qkv::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
