// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "qkv/tensor/dtype.h"

namespace qkv {

/// The bits of a small IEEE format (sign, kExponent bits, kMantissa bits) nearest to `value`, ties to even: one
/// rounding straight from the double, because a stop in f32 would round twice. NaN stays NaN (sign and leading payload
/// bits kept, quiet); beyond the range it is infinity.
template <int kExponent, int kMantissa>
inline uint16_t round_to_small_float(double value) {
  constexpr int kLowest = 2 - (1 << (kExponent - 1));  // exponent of the smallest normal number
  constexpr int kHighest = (1 << (kExponent - 1)) - 1;
  constexpr uint32_t kInfinity = ((1u << kExponent) - 1u) << kMantissa;
  constexpr uint64_t kHidden = uint64_t{1} << 52;

  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (kExponent + kMantissa);
  const uint64_t fraction = bits & (kHidden - 1);
  const int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  if (exponent == 1024 && fraction != 0) {
    const uint32_t payload = static_cast<uint32_t>(fraction >> (52 - kMantissa)) | 1u << (kMantissa - 1);
    return static_cast<uint16_t>(sign | kInfinity | payload);
  }
  if (exponent > kHighest) return static_cast<uint16_t>(sign | kInfinity);

  // Below the smallest normal number the last place stops shrinking: more bits fall off.
  const int shift = 52 - kMantissa + (exponent < kLowest ? kLowest - exponent : 0);
  if (shift > 53) return static_cast<uint16_t>(sign);  // less than half of the smallest number; f64 subnormals too
  const uint64_t significand = fraction | kHidden;
  const uint64_t lost = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  uint32_t rounded = static_cast<uint32_t>(significand >> shift);
  rounded += lost > half || (lost == half && (rounded & 1u) != 0);
  // The hidden bit, and a carry out of the rounding, add one to the exponent field; past the top that is infinity.
  if (exponent > kLowest) rounded += static_cast<uint32_t>(exponent - kLowest) << kMantissa;
  return static_cast<uint16_t>(sign | rounded);
}

inline Float16 round_to_float16(double value) { return Float16{round_to_small_float<5, 10>(value)}; }
inline BFloat16 round_to_bfloat16(double value) { return BFloat16{round_to_small_float<8, 7>(value)}; }

/// The short way for f32, which has bf16's exponents: add half of the last place, less one when that place is even.
/// Without branches, so that loops of it become vectors.
inline BFloat16 round_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t quiet = bits >> 16 | 0x40u;
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return BFloat16{static_cast<uint16_t>(is_nan ? quiet : rounded)};
}

/// Exact: every f16 is an f32.
inline float widen(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

}  // namespace qkv
