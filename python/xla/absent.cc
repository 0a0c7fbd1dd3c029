// SPDX-License-Identifier: Apache-2.0
#include "python/xla/handler.h"

namespace qkv::python {

void add_xla(nanobind::module_&) {}

}  // namespace qkv::python
