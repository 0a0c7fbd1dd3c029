// SPDX-License-Identifier: Apache-2.0
// Any bytes are a .npy file or are refused in a sentence; what was read, written and read again, is the same.
#include <cstddef>
#include <cstdint>

#include "fuzz.h"
#include "qkv/support/error.h"
#include "qkv/tensor/npy.h"
#include "tensor/npy_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qkv::Tensor tensor;
  try {
    tensor = qkv::parse_npy(data, size, "x.npy");
  } catch (const qkv::SystemError&) {
    qkv::must(false);  // nothing here needs more memory than the file has bytes
  } catch (const qkv::Error& error) {
    qkv::must_be_a_sentence(error.what(), "x.npy: ");
    return 0;
  }
  const std::string elements = qkv::row_major_bytes(tensor.view());
  const std::string file = qkv::npy_preamble(tensor.dtype(), tensor.shape()) + elements;
  const qkv::Tensor again = qkv::parse_npy(file.data(), file.size(), "again");
  qkv::must(again.dtype() == tensor.dtype() && again.shape() == tensor.shape());
  qkv::must(again.view().is_contiguous() && qkv::row_major_bytes(again.view()) == elements);
  return 0;
}
