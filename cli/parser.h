// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace qkv::cli {

/// Reads the command line and does what it says. Throws Error for anything wrong with it.
void run(int argc, const char* const* argv);

}  // namespace qkv::cli
