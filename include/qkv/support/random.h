// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace qkv {

/// A bijective mixing of 64 bits (the finaliser of splitmix64).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The key of one row of dropout decisions: a pure function of its arguments.
constexpr uint64_t dropout_row_key(uint64_t seed, int64_t batch, int64_t head, int64_t query_position) {
  uint64_t key = mix64(seed);
  key = mix64(key ^ static_cast<uint64_t>(batch));
  key = mix64(key ^ static_cast<uint64_t>(head));
  return mix64(key ^ static_cast<uint64_t>(query_position));
}

/// 32 uniform bits for key position j of a row: two rounds of a 32-bit multiply-xorshift mix, each keyed by one half of
/// the row key. Only 32-bit operations, so that kernels can run it in every lane.
constexpr uint32_t dropout_bits(uint64_t row_key, int64_t j) {
  const uint64_t position = static_cast<uint64_t>(j);
  uint32_t x = static_cast<uint32_t>(position) ^ static_cast<uint32_t>(row_key);
  x += static_cast<uint32_t>(position >> 32) * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x21F0AAADu;
  x = (x ^ (x >> 15)) * 0x735A2D97u;
  x ^= static_cast<uint32_t>(row_key >> 32);
  x = (x ^ (x >> 15)) * 0x21F0AAADu;
  x = (x ^ (x >> 15)) * 0x735A2D97u;
  return x ^ (x >> 15);
}

/// Keys whose bits lie below this are dropped: p in units of 2^-32, rounded to nearest.
constexpr uint32_t dropout_threshold(double p) {
  const double scaled = p * 4294967296.0 + 0.5;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(scaled);
}

}  // namespace qkv
