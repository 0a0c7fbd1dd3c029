// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace qkv::bench {

/// Whether this program knows bf16 dot products of this machine, and the named instruction set is wide enough for them.
bool has_dot_bf16(const std::string& target);
/// Independent chains of bf16 dot products in registers, summed in f32. Only where has_dot_bf16.
double dot_bf16(int64_t iterations);
/// Of an iteration. Each f32 lane takes two products and their sums.
inline constexpr int64_t kDotBf16Operations = 16 * 16 * 4;

}  // namespace qkv::bench
