// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/dtype.h"

#include <cmath>
#include <limits>

#include "tensor/round.h"

namespace qkv {
namespace {

/// Nearest integer, ties to even, kept inside the range; NaN is 0.
template <class T>
T saturate(double value) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  // The largest value may round up to a power of two as a double: everything from there on is out of range.
  if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(rounded);
}

}  // namespace

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::boolean: return "bool";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
  }
  return "?";
}

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::boolean:
    case DType::u8: return 1;
  }
  return 1;
}

float to_float(Float16 x) { return widen(x); }
BFloat16 to_bfloat16(float x) { return round_to_bfloat16(x); }
Float16 to_float16(float x) { return round_to_float16(static_cast<double>(x)); }

double load_as_double(DType dtype, const void* element) {
  switch (dtype) {
    case DType::f64: return *static_cast<const double*>(element);
    case DType::f32: return static_cast<double>(*static_cast<const float*>(element));
    case DType::bf16: return static_cast<double>(to_float(*static_cast<const BFloat16*>(element)));
    case DType::f16: return static_cast<double>(widen(*static_cast<const Float16*>(element)));
    case DType::boolean: return *static_cast<const uint8_t*>(element) != 0 ? 1 : 0;
    case DType::u8: return *static_cast<const uint8_t*>(element);
    case DType::i32: return *static_cast<const int32_t*>(element);
    case DType::i64: return static_cast<double>(*static_cast<const int64_t*>(element));
  }
  return 0;
}

void store_from_double(DType dtype, void* element, double value) {
  switch (dtype) {
    case DType::f64: *static_cast<double*>(element) = value; return;
    case DType::f32: *static_cast<float*>(element) = static_cast<float>(value); return;
    case DType::bf16: *static_cast<BFloat16*>(element) = round_to_bfloat16(value); return;
    case DType::f16: *static_cast<Float16*>(element) = round_to_float16(value); return;
    case DType::boolean: *static_cast<uint8_t*>(element) = value != 0 ? 1 : 0; return;
    case DType::u8: *static_cast<uint8_t*>(element) = saturate<uint8_t>(value); return;
    case DType::i32: *static_cast<int32_t*>(element) = saturate<int32_t>(value); return;
    case DType::i64: *static_cast<int64_t*>(element) = saturate<int64_t>(value); return;
  }
}

}  // namespace qkv
