// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "qkv/attention.h"

namespace qkv::cli {

// Strict readers of option values: the whole text must be one value in range. Each throws Error that starts with the
// option's name and says what was expected and what came. "nan", "inf", hexadecimal and trailing characters are
// refused.

double parse_number(const std::string& flag, const std::string& text);

inline constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least = kLeast, int64_t most = kMost);

/// 0 ... 2^64 - 1
uint64_t parse_seed(const std::string& flag, const std::string& text);

/// "L,R", either "-" for unbounded.
Window parse_window(const std::string& flag, const std::string& text);

/// "bq,bk", both at least 1.
BlockShape parse_block(const std::string& flag, const std::string& text);

/// top_left, bottom_right, offsets, or an integer.
Causal parse_causal(const std::string& flag, const std::string& text);
inline constexpr const char* kCausalChoices = "top_left, bottom_right, an integer offset, or offsets";

/// A tile of the weights: queries and keys, half open.
struct Tile {
  Range queries;
  Range keys;
};
/// "q0:q1,k0:k1"
Tile parse_tile(const std::string& flag, const std::string& text);

/// Whose heaviest edges, and how many.
struct EdgeRequest {
  int64_t query = 0;
  int64_t count = 0;
};
/// "i:K"
EdgeRequest parse_edges(const std::string& flag, const std::string& text);

/// f64, f32, bf16 or f16.
DType parse_dtype(const std::string& flag, const std::string& text);

/// f32 or bf16, what models compute in.
DType parse_model_dtype(const std::string& flag, const std::string& text);

Buckets::Kind parse_buckets(const std::string& flag, const std::string& text);

}  // namespace qkv::cli
