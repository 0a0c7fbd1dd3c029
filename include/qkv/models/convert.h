// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "qkv/tensor/dtype.h"

namespace qkv {

/// Writes a model's folder anew, with all weights in f32 or bf16 (rounded once) in one model.safetensors: what
/// Transformers reads as the same model, poolers and heads of tasks included. Buffers are left out, tied copies are
/// written once; the files of its tokenizer and of sentence-transformers come along. `out` must not exist; a reader
/// sees it whole or not at all. Throws as Transformer::from_folder, and SystemError when it cannot be written.
void convert_model(const std::string& folder, const std::string& out, DType dtype);

}  // namespace qkv
