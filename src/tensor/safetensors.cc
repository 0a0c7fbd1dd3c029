// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/safetensors.h"

#include <bit>
#include <cstring>
#include <memory>

#include "qkv/support/error.h"
#include "tensor/file_writer.h"
#include "tensor/mapped_file.h"
#include "tensor/safetensors_header.h"

namespace qkv {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and used as they lie");

/// The tensors over `bytes`, kept alive by `owner`. Without one they are copied, and so is a tensor that does not lie
/// at a multiple of its element's size: the format allows any place, the processor and the language do not.
TensorFile load(const char* bytes, size_t size, const std::string& name, const std::shared_ptr<const void>& owner) {
  SafetensorsHeader header = parse_safetensors_header(bytes, size, name);
  TensorFile file;
  file.metadata = std::move(header.metadata);
  for (const auto& [key, entry] : header.tensors) {
    const char* data = bytes + entry.begin;
    const TensorView view(entry.dtype, data, entry.shape);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(entry.dtype)) == 0;
    Tensor tensor;
    if (owner && aligned) {
      tensor = Tensor(view, owner);
    } else {
      tensor = Tensor(entry.dtype, entry.shape);
      const size_t count = static_cast<size_t>(view.elements() * size_of(entry.dtype));
      if (count > 0) std::memcpy(tensor.mutable_view().data(), data, count);
    }
    file.tensors.emplace_hint(file.tensors.end(), key, std::move(tensor));
  }
  return file;
}

}  // namespace

TensorFile read_safetensors(const std::string& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  return load(file->data(), file->size(), path, file);
}

TensorFile parse_safetensors(const void* bytes, size_t size, const std::string& name) {
  return load(static_cast<const char*>(bytes), size, name, nullptr);
}

void write_safetensors(const std::string& path, const std::map<std::string, TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string preamble = safetensors_preamble(tensors, metadata, path);
  FileWriter file(path);
  file.append(preamble);
  for (const std::string& name : safetensors_order(tensors)) file.append(tensors.at(name));
  file.commit();
}

}  // namespace qkv
