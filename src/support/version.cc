// SPDX-License-Identifier: Apache-2.0
#include "qkv/version.h"

namespace qkv {

const char* version() { return QKV_VERSION; }

}  // namespace qkv
