// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace qkv::python {

/// The modes of attention with results as arguments, for frameworks that allocate them themselves: forward,
/// forward_with_state, backward, jvp and second_order.
void add_in_place(nanobind::module_& module);

}  // namespace qkv::python
