// SPDX-License-Identifier: Apache-2.0
#include "qkv/support/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace qkv {
namespace {

// The first outputs of splitmix64 seeded with 0 and 1234567, from its reference implementation.
TEST(random, mix64_is_the_finaliser_of_splitmix64) {
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(mix64(1234567), 6457827717110365317u);
}

// Worked out by the formulas in Python integers. Saved results rely on these never changing.
TEST(random, decisions_of_dropout_are_these_for_ever) {
  EXPECT_EQ(dropout_row_key(0, 0, 0, 0), 2391539541053276776u);
  EXPECT_EQ(dropout_row_key(42, 1, 2, -3), 7677229059857461485u);
  EXPECT_EQ(dropout_bits(dropout_row_key(42, 1, 2, 3), 0), 1862882892u);
  EXPECT_EQ(dropout_bits(dropout_row_key(42, 1, 2, 3), 12345), 2216401273u);
  EXPECT_EQ(dropout_bits(dropout_row_key(42, 1, 2, 3), int64_t{1} << 40), 1998968077u);
}

TEST(random, a_threshold_is_the_probability_in_units_of_2_to_the_minus_32) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(0.25), 0x40000000u);
  EXPECT_EQ(dropout_threshold(0x1p-32), 1u);
  EXPECT_EQ(dropout_threshold(0x1p-34), 0u);
  EXPECT_EQ(dropout_threshold(1 - 0x1p-53), 0xFFFFFFFFu);
}

constexpr int kRows = 512;
constexpr int kKeys = 512;
constexpr double kCount = static_cast<double>(kRows) * kKeys;

uint32_t bits_of(int row, int key) { return dropout_bits(dropout_row_key(7, row % 4, row / 4 % 8, row / 32), key); }

/// Deviation of a count from `p` of n trials, in standard deviations. Six are one chance in 500 million.
double deviation(double count, double n, double p) { return std::fabs(count - n * p) / std::sqrt(n * p * (1 - p)); }

TEST(random, every_bit_is_set_half_of_the_time) {
  std::array<double, 32> set{};
  for (int row = 0; row < kRows; ++row) {
    for (int key = 0; key < kKeys; ++key) {
      for (size_t bit = 0; bit < 32; ++bit) set[bit] += (bits_of(row, key) >> bit) & 1;
    }
  }
  for (const double count : set) EXPECT_LT(deviation(count, kCount, 0.5), 6);
}

TEST(random, a_share_p_is_dropped_in_all_and_neighbours_agree_by_chance) {
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const uint32_t threshold = dropout_threshold(p);
    double dropped = 0, with_next_key = 0, with_next_row = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int key = 0; key < kKeys; ++key) {
        const bool here = bits_of(row, key) < threshold;
        dropped += here;
        with_next_key += here && bits_of(row, key + 1) < threshold;
        with_next_row += here && bits_of(row + 1, key) < threshold;
      }
    }
    EXPECT_LT(deviation(dropped, kCount, p), 6) << p;
    EXPECT_LT(deviation(with_next_key, kCount, p * p), 6) << p;
    EXPECT_LT(deviation(with_next_row, kCount, p * p), 6) << p;
  }
}

// One input bit changes each output bit with probability 1/2: seeds, batch entries, heads, queries and keys that
// differ by one are as good as independent.
TEST(random, every_argument_reaches_every_bit) {
  constexpr int kTrials = 4096;
  const auto flips = [](auto bits_at) {
    double flipped = 0;
    for (int n = 0; n < kTrials; ++n) flipped += std::popcount(bits_at(2 * n) ^ bits_at(2 * n + 1));
    return deviation(flipped, 32.0 * kTrials, 0.5);
  };
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(static_cast<uint64_t>(n), 0, 0, 0), 0); }), 6);
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(1, n, 0, 0), 0); }), 6);
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(1, 0, n, 0), 0); }), 6);
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(1, 0, 0, n), 0); }), 6);
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(1, 0, 0, 0), n); }), 6);
  EXPECT_LT(flips([](int n) { return dropout_bits(dropout_row_key(1, 0, 0, 0), int64_t{n} << 32); }), 6);
}

}  // namespace
}  // namespace qkv
