// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// xla_handler, in builds beside jaxlib; nothing in others.
void add_xla(nanobind::module_& module);

}  // namespace qkv::python
