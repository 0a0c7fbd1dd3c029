// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// attention_jvp and attention_second_order.
void add_derivatives(nanobind::module_& module);

}  // namespace qkv::python
