// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace qkv::cli {

/// The whole program but main(): runs the verb, says what went wrong in one line on standard error, returns the exit
/// code. Changes how the process handles SIGPIPE, SIGXFSZ and SIGBUS.
int program(int argc, char** argv);

}  // namespace qkv::cli
