// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// The class Transformer of the extension, which qkv.Transformer is made of.
void add_transformer(nanobind::module_& module);

}  // namespace qkv::python
