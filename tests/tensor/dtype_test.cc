// SPDX-License-Identifier: Apache-2.0
#include "qkv/tensor/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace qkv {
namespace {

/// A 16-bit format by its definition: the value of a pattern, in f64, where every one of them is exact.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
}

/// The slow rule: of all finite patterns the nearest, of two equally near the even one; halfway beyond the largest, or
/// further, infinity. Positive values only need the ascending patterns 0 ... largest.
class SlowRounding {
 public:
  SlowRounding(int exponent_bits, int mantissa_bits) : infinity_(((1u << exponent_bits) - 1) << mantissa_bits) {
    for (uint32_t bits = 0; bits < infinity_; ++bits) values_.push_back(value_of(bits, exponent_bits, mantissa_bits));
    // What the format would hold next, had it one exponent more.
    values_.push_back(2 * value_of(infinity_ - (1u << mantissa_bits), exponent_bits, mantissa_bits));
  }

  uint32_t operator()(double value) const {
    const uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
    const double magnitude = std::fabs(value);
    if (magnitude >= values_.back()) return sign | infinity_;
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const uint32_t low = static_cast<uint32_t>(above - values_.begin()) - 1;
    // Neighbours are so near each other that both differences are exact.
    const double down = magnitude - values_[low];
    const double up = values_[low + 1] - magnitude;
    const bool take_upper = up < down || (up == down && low % 2 == 1);
    return sign | (take_upper ? low + 1 : low);
  }
  const std::vector<double>& values() const { return values_; }

 private:
  uint32_t infinity_;
  std::vector<double> values_;
};

TEST(DTypeTest, NamesAndSizes) {
  EXPECT_EQ(name(DType::f64), "f64");
  EXPECT_EQ(name(DType::f32), "f32");
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(name(DType::f16), "f16");
  EXPECT_EQ(name(DType::boolean), "bool");
  EXPECT_EQ(name(DType::u8), "u8");
  EXPECT_EQ(name(DType::i32), "i32");
  EXPECT_EQ(name(DType::i64), "i64");
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::i64), 8);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::boolean), 1);
  EXPECT_EQ(size_of(DType::u8), 1);
}

TEST(DTypeTest, EveryF16RoundTrips) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Float16 x{static_cast<uint16_t>(bits)};
    const double expected = value_of(bits, 5, 10);
    const float wide = to_float(x);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_EQ(to_float16(wide).bits, bits | 0x200u) << bits;  // sign and payload stay, and the NaN is quiet
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << bits;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000u) << bits;
    ASSERT_EQ(to_float16(wide).bits, bits);
    ASSERT_EQ(load_as_double(DType::f16, &x), expected);
    Float16 back{};
    store_from_double(DType::f16, &back, expected);
    ASSERT_EQ(back.bits, bits);
  }
}

TEST(DTypeTest, EveryBF16RoundTrips) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const double expected = value_of(bits, 8, 7);
    const float wide = to_float(x);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_EQ(to_bfloat16(wide).bits, bits | 0x40u) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), expected) << bits;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000u) << bits;
    ASSERT_EQ(to_bfloat16(wide).bits, bits);
    ASSERT_EQ(load_as_double(DType::bf16, &x), expected);
    BFloat16 back{};
    store_from_double(DType::bf16, &back, expected);
    ASSERT_EQ(back.bits, bits);
  }
}

/// Every value of the format, every midpoint, and the f32 and f64 neighbours of both: where rounding is decided.
std::vector<double> decisive_values(const SlowRounding& slow) {
  std::vector<double> values;
  const double infinity = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i + 1 < slow.values().size(); ++i) {
    for (const double x : {slow.values()[i], slow.values()[i] / 2 + slow.values()[i + 1] / 2}) {
      const float f = static_cast<float>(x);
      for (const double y :
           {x, std::nextafter(x, 0.0), std::nextafter(x, infinity), static_cast<double>(std::nextafter(f, 0.0f)),
            static_cast<double>(std::nextafter(f, std::numeric_limits<float>::infinity()))}) {
        values.push_back(y);
        values.push_back(-y);
      }
    }
  }
  return values;
}

TEST(DTypeTest, F16RoundsOnceToNearestEven) {
  const SlowRounding slow(5, 10);
  for (const double value : decisive_values(slow)) {
    Float16 stored{};
    store_from_double(DType::f16, &stored, value);
    ASSERT_EQ(stored.bits, slow(value)) << value;
    const float narrow = static_cast<float>(value);
    ASSERT_EQ(to_float16(narrow).bits, slow(static_cast<double>(narrow))) << narrow;
  }
}

TEST(DTypeTest, BF16RoundsOnceToNearestEven) {
  const SlowRounding slow(8, 7);
  for (const double value : decisive_values(slow)) {
    BFloat16 stored{};
    store_from_double(DType::bf16, &stored, value);
    ASSERT_EQ(stored.bits, slow(value)) << value;
    const float narrow = static_cast<float>(value);
    ASSERT_EQ(to_bfloat16(narrow).bits,
              std::isinf(narrow) ? (narrow < 0 ? 0xFF80u : 0x7F80u) : slow(static_cast<double>(narrow)))
        << narrow;
  }
}

TEST(DTypeTest, RandomBitPatternsRoundToNearestEven) {
  const SlowRounding half(5, 10);
  const SlowRounding brain(8, 7);
  std::mt19937_64 random(20240601);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(to_float16(x).bits, half(static_cast<double>(x))) << x;
    ASSERT_EQ(to_bfloat16(x).bits, brain(static_cast<double>(x))) << x;
  }
}

// 1 + 2^-11 + 2^-40 lies above the midpoint of two f16 values; f32 forgets the 2^-40, and the tie would then go down.
TEST(DTypeTest, StoringADoubleDoesNotRoundTwice) {
  const double value = 1 + 0x1p-11 + 0x1p-40;
  Float16 half{};
  store_from_double(DType::f16, &half, value);
  EXPECT_EQ(half.bits, 0x3C01u);
  EXPECT_EQ(to_float16(static_cast<float>(value)).bits, 0x3C00u);
  BFloat16 brain{};
  store_from_double(DType::bf16, &brain, 1 + 0x1p-8 + 0x1p-40);
  EXPECT_EQ(brain.bits, 0x3F81u);
  EXPECT_EQ(to_bfloat16(static_cast<float>(1 + 0x1p-8 + 0x1p-40)).bits, 0x3F80u);
}

TEST(DTypeTest, ExtremesOfFloatingTypes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    double storage = 0;
    store_from_double(dtype, &storage, 1e300);
    EXPECT_EQ(load_as_double(dtype, &storage), std::numeric_limits<double>::infinity()) << name(dtype);
    store_from_double(dtype, &storage, -1e300);
    EXPECT_EQ(load_as_double(dtype, &storage), -std::numeric_limits<double>::infinity()) << name(dtype);
    store_from_double(dtype, &storage, std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(std::isnan(load_as_double(dtype, &storage))) << name(dtype);
    store_from_double(dtype, &storage, -1e-310);
    EXPECT_EQ(load_as_double(dtype, &storage), 0) << name(dtype);
    EXPECT_TRUE(std::signbit(load_as_double(dtype, &storage))) << name(dtype);
  }
}

TEST(DTypeTest, IntegersRoundAndSaturate) {
  int32_t i32 = 0;
  store_from_double(DType::i32, &i32, 2.5);
  EXPECT_EQ(i32, 2);
  store_from_double(DType::i32, &i32, -1e12);
  EXPECT_EQ(i32, std::numeric_limits<int32_t>::min());
  int64_t i64 = 0;
  store_from_double(DType::i64, &i64, 0x1p63);
  EXPECT_EQ(i64, std::numeric_limits<int64_t>::max());
  store_from_double(DType::i64, &i64, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(i64, 0);
  uint8_t u8 = 1;
  store_from_double(DType::u8, &u8, -3);
  EXPECT_EQ(u8, 0);
  store_from_double(DType::u8, &u8, 254.5);
  EXPECT_EQ(u8, 254);
  Boolean truth{0};
  store_from_double(DType::boolean, &truth, 0.25);
  EXPECT_EQ(truth.byte, 1);
  truth.byte = 7;
  EXPECT_EQ(load_as_double(DType::boolean, &truth), 1);
}

TEST(DTypeTest, LoadAndStoreInAComputeType) {
  const Float16 half{0x3555};  // nearest to 1/3
  EXPECT_EQ(load_as<float>(DType::f16, &half), to_float(half));
  EXPECT_EQ(load_as<double>(DType::f16, &half), static_cast<double>(to_float(half)));
  Float16 stored{};
  store_as(DType::f16, &stored, 1.0f / 3.0f);
  EXPECT_EQ(stored.bits, half.bits);
  int32_t integer = 0;
  store_as(DType::i32, &integer, 41.0f);
  EXPECT_EQ(load_as<float>(DType::i32, &integer), 41.0f);
}

}  // namespace
}  // namespace qkv
