// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// The class Tokenizer.
void add_tokenizer(nanobind::module_& module);

}  // namespace qkv::python
