// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "qkv/support/error.h"
#include "tensor/file_writer.h"
#include "tensor/mapped_file.h"
#include "tensor/npy_header.h"

namespace qkv {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and used as they lie");

Dims reversed(const Dims& dims) {
  Dims result = dims;
  for (int axis = 0; axis < dims.rank(); ++axis) result[axis] = dims[dims.rank() - 1 - axis];
  return result;
}

/// First axis fastest.
Dims fortran_strides(const Dims& shape) { return reversed(contiguous_strides(reversed(shape))); }

void swap_bytes(unsigned char* bytes, int64_t elements, int64_t width) {
  for (int64_t i = 0; i < elements; ++i) std::reverse(bytes + i * width, bytes + (i + 1) * width);
}

/// The array over `data`, kept alive by `owner`; without one, or where the bytes cannot be used as they lie, a copy.
Tensor load(const NpyHeader& header, const char* data, const std::shared_ptr<const void>& owner) {
  const Dims strides = header.fortran ? fortran_strides(header.shape) : contiguous_strides(header.shape);
  const int64_t width = size_of(header.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(width) == 0;
  if (owner && aligned && !header.swapped) return Tensor(TensorView(header.dtype, data, header.shape, strides), owner);

  auto copied = std::make_shared<Tensor>(header.dtype, header.fortran ? reversed(header.shape) : header.shape);
  const int64_t elements = copied->view().elements();
  unsigned char* bytes = static_cast<unsigned char*>(copied->mutable_view().data());
  if (elements > 0) std::memcpy(bytes, data, static_cast<size_t>(elements * width));
  if (header.swapped) swap_bytes(bytes, elements, width);
  if (!header.fortran) return *copied;
  return Tensor(TensorView(header.dtype, bytes, header.shape, strides), copied);
}

}  // namespace

Tensor read_npy(const std::string& path) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  const NpyHeader header = parse_npy_header(file->data(), file->size(), path);
  return load(header, file->data() + header.data_begin, file);
}

Tensor parse_npy(const void* bytes, size_t size, const std::string& name) {
  const char* text = static_cast<const char*>(bytes);
  const NpyHeader header = parse_npy_header(text, size, name);
  return load(header, text + header.data_begin, nullptr);
}

void write_npy(const std::string& path, const TensorView& tensor) {
  require(static_cast<bool>(tensor), path, ": there is no tensor to write");
  require(tensor.dtype() != DType::bf16, path, ": NumPy has no name for bf16; write .safetensors, or convert to f32");
  FileWriter file(path);
  file.append(npy_preamble(tensor.dtype(), tensor.shape()));
  file.append(tensor);
  file.commit();
}

}  // namespace qkv
