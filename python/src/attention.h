// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// attention, attention_grad and probe.
void add_attention(nanobind::module_& module);

}  // namespace qkv::python
