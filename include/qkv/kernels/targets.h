// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace qkv {

/// Instruction sets this binary has code for and this machine can run, best first, by their Highway names
/// ("AVX3", "AVX2", "SSE4", ...); "AVX3_BF16" is AVX3 with bf16 dot products.
std::vector<std::string> supported_targets();
/// The one in use: the best, or what the environment variable QKV_TARGET names at start-up. Throws Error when that is
/// unknown or this machine lacks it.
std::string chosen_target();
/// Forces one for the calls that follow; throws Error naming the known ones otherwise. Not while a call is running.
void choose_target(const std::string& name);

}  // namespace qkv
