// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace qkv::cli {

/// A script that completes verbs, options and file names, made from the parser. Throws Error for another shell than
/// bash and zsh.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace qkv::cli
