// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace qkv {

enum class DType : uint8_t { f64, f32, bf16, f16, boolean, u8, i32, i64 };

/// "f64", "f32", "bf16", "f16", "bool", "u8", "i32", "i64".
std::string_view name(DType dtype);
int64_t size_of(DType dtype);
inline bool is_floating(DType dtype) { return dtype <= DType::f16; }

/// bfloat16: the upper half of an f32. Conversion from f32 rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits;
};
/// IEEE binary16. Conversion from f32 rounds to nearest even, with subnormals; beyond the range it gives infinity.
struct Float16 {
  uint16_t bits;
};
/// One byte; nonzero is true.
struct Boolean {
  uint8_t byte;
};

inline float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float to_float(Float16 x);
BFloat16 to_bfloat16(float x);
Float16 to_float16(float x);

template <class T>
struct DTypeOf;
// clang-format off
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<Float16> { static constexpr DType value = DType::f16; };
template <> struct DTypeOf<Boolean> { static constexpr DType value = DType::boolean; };
template <> struct DTypeOf<bool> { static constexpr DType value = DType::boolean; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::u8; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::i64; };
// clang-format on

/// One element of any dtype as a double (i64 beyond 2^53 rounds).
double load_as_double(DType dtype, const void* element);
/// Stores a double, rounded once to the dtype; floating types only go to infinity beyond their range.
void store_from_double(DType dtype, void* element, double value);

/// An element of a floating dtype in the compute type T (float, or double for f64): exact.
template <class T>
T load_as(DType dtype, const void* element) {
  switch (dtype) {
    case DType::f64: return static_cast<T>(*static_cast<const double*>(element));
    case DType::f32: return static_cast<T>(*static_cast<const float*>(element));
    case DType::bf16: return static_cast<T>(to_float(*static_cast<const BFloat16*>(element)));
    case DType::f16: return static_cast<T>(to_float(*static_cast<const Float16*>(element)));
    default: return static_cast<T>(load_as_double(dtype, element));
  }
}

/// Stores a compute value, rounded once to nearest even.
template <class T>
void store_as(DType dtype, void* element, T value) {
  switch (dtype) {
    case DType::f64: *static_cast<double*>(element) = static_cast<double>(value); return;
    case DType::f32: *static_cast<float*>(element) = static_cast<float>(value); return;
    default: store_from_double(dtype, element, static_cast<double>(value)); return;
  }
}

}  // namespace qkv
