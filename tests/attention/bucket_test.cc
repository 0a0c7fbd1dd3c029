// SPDX-License-Identifier: Apache-2.0
//
// T5's buckets with exact floors, against a search in integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "attention/bias.h"
#include "random_stream.h"

namespace qkv {
namespace {

/// An unsigned integer of 2048 bits, enough for the powers below. Overflow is a failure of the test.
class Big {
 public:
  explicit Big(uint64_t value) {
    limbs_[0] = static_cast<uint32_t>(value);
    limbs_[1] = static_cast<uint32_t>(value >> 32);
  }
  /// this^exponent, by repeated multiplication with a 32-bit base.
  static Big power(uint32_t base, int64_t exponent) { return Big(1).times(base, exponent); }
  Big times(uint32_t base, int64_t exponent) const {
    Big result = *this;
    for (int64_t n = 0; n < exponent; ++n) {
      uint64_t carry = 0;
      for (uint32_t& limb : result.limbs_) {
        carry += static_cast<uint64_t>(limb) * base;
        limb = static_cast<uint32_t>(carry);
        carry >>= 32;
      }
      EXPECT_EQ(carry, 0u);
    }
    return result;
  }
  bool operator>=(const Big& other) const {
    for (size_t i = limbs_.size(); i-- > 0;) {
      if (limbs_[i] != other.limbs_[i]) return limbs_[i] > other.limbs_[i];
    }
    return true;
  }

 private:
  std::array<uint32_t, 64> limbs_{};
};

/// The largest n with distance^count >= largest^n exact^(count-n), the floor of the rule, found by counting up.
int64_t bucket_by_counting(int64_t distance, int64_t count, int64_t max_distance) {
  const int64_t exact = count / 2;
  if (distance < exact) return distance;
  if (exact == 0) return 0;
  const int64_t logarithmic = count - exact;
  const uint32_t d = static_cast<uint32_t>(distance);
  const uint32_t e = static_cast<uint32_t>(exact);
  const uint32_t m = static_cast<uint32_t>(max_distance);
  int64_t n = 0;
  while (n + 1 < logarithmic && Big::power(d, logarithmic) >= Big::power(m, n + 1).times(e, logarithmic - n - 1)) {
    ++n;
  }
  return exact + n;
}

void expect_buckets(int64_t buckets, int64_t max_distance, int64_t farthest) {
  for (int64_t distance = -farthest; distance <= farthest; ++distance) {
    const int64_t causal = bucket_by_counting(std::max<int64_t>(distance, 0), buckets, max_distance);
    ASSERT_EQ(relative_bucket(distance, buckets, {Buckets::Kind::causal, max_distance}), causal)
        << "causal, distance " << distance << ", buckets " << buckets << ", max_distance " << max_distance;
    if (buckets % 2 != 0) continue;
    const int64_t half = buckets / 2;
    const int64_t both = (distance < 0 ? half : 0) + bucket_by_counting(std::abs(distance), half, max_distance);
    ASSERT_EQ(relative_bucket(distance, buckets, {Buckets::Kind::bidirectional, max_distance}), both)
        << "bidirectional, distance " << distance << ", buckets " << buckets << ", max_distance " << max_distance;
  }
}

TEST(bucket, equals_a_search_in_integers) {
  expect_buckets(32, 128, 200);
  expect_buckets(32, 256, 300);
  expect_buckets(32, 20, 40);
  expect_buckets(64, 129, 140);
  expect_buckets(8, 16, 40);
  for (const int64_t buckets : {1, 2, 3, 4, 5, 7, 10, 31}) {
    for (const int64_t max_distance : {17, 18, 32, 64, 100}) expect_buckets(buckets, max_distance, max_distance + 2);
  }
}

// With 8 exact distances and 128, distances 16, 32 and 64 are on boundaries: log(32/8) / log(128/8) * 8 is 4, and
// 3.9999998 in f32.
TEST(bucket, distances_on_a_boundary_belong_to_the_bucket_they_begin) {
  const Buckets rule = {Buckets::Kind::causal, 128};
  EXPECT_EQ(relative_bucket(15, 16, rule), 9);
  EXPECT_EQ(relative_bucket(16, 16, rule), 10);
  EXPECT_EQ(relative_bucket(31, 16, rule), 11);
  EXPECT_EQ(relative_bucket(32, 16, rule), 12);
  EXPECT_EQ(relative_bucket(63, 16, rule), 13);
  EXPECT_EQ(relative_bucket(64, 16, rule), 14);
  EXPECT_EQ(relative_bucket(127, 16, rule), 15);
  EXPECT_EQ(relative_bucket(128, 16, rule), 15);
  EXPECT_EQ(relative_bucket(int64_t{1} << 61, 16, rule), 15);
}

// The table of transformers' T5 for 32 bidirectional buckets and 128: query - key from -20 to 20.
TEST(bucket, is_the_rule_of_t5) {
  const int64_t expected[] = {26, 26, 26, 26, 26, 25, 25, 25, 25, 24, 24, 24, 24, 23, 22, 21, 20, 19, 18, 17, 0,
                              1,  2,  3,  4,  5,  6,  7,  8,  8,  8,  8,  9,  9,  9,  9,  10, 10, 10, 10, 10};
  for (int64_t distance = -20; distance <= 20; ++distance) {
    EXPECT_EQ(relative_bucket(distance, 32, {Buckets::Kind::bidirectional, 128}), expected[distance + 20]) << distance;
  }
}

TEST(bucket, far_distances_and_many_buckets_stay_exact) {
  // exact = 2^20, max_distance = 2^60: a bucket for every 2^(40/2^20) more. Powers of two are on boundaries.
  const Buckets rule = {Buckets::Kind::causal, int64_t{1} << 60};
  const int64_t buckets = int64_t{1} << 21;
  for (int64_t shift = 0; shift < 40; shift += 5) {
    const int64_t boundary = (int64_t{1} << 20) + (shift * (int64_t{1} << 20)) / 40;
    EXPECT_EQ(relative_bucket(int64_t{1} << (20 + shift), buckets, rule), boundary);
    if (shift > 0) {
      EXPECT_EQ(relative_bucket((int64_t{1} << (20 + shift)) - 1, buckets, rule), boundary - 1);
    }
  }
}

// Where logarithms cannot tell x from its neighbour: one step beside a boundary at distances near 2^60.
TEST(bucket, neighbours_of_a_boundary_beyond_the_digits_of_a_double) {
  const int64_t root = int64_t{1} << 29;  // exact = 1, max_distance = root^2: the boundary is the root
  const Buckets rule = {Buckets::Kind::causal, root * root};
  EXPECT_EQ(relative_bucket(root - 1, 3, rule), 1);
  EXPECT_EQ(relative_bucket(root, 3, rule), 2);
  const Buckets odd = {Buckets::Kind::causal, (int64_t{1} << 60) - 1};  // its root is a little below 2^30
  EXPECT_EQ(relative_bucket((int64_t{1} << 30) - 1, 3, odd), 1);
  EXPECT_EQ(relative_bucket(int64_t{1} << 30, 3, odd), 2);
}

TEST(bucket, never_falls_with_distance_and_stays_in_range) {
  test::Stream stream(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t buckets = stream.integer(1, 100);
    const Buckets rule = {Buckets::Kind::causal, stream.integer(buckets / 2 + 1, 5000)};
    int64_t before = 0;
    for (int64_t distance = 0; distance < 300; ++distance) {
      const int64_t bucket = relative_bucket(distance, buckets, rule);
      ASSERT_GE(bucket, before);
      ASSERT_LT(bucket, buckets);
      before = bucket;
    }
    EXPECT_EQ(relative_bucket(rule.max_distance, buckets, rule), buckets - 1);
  }
}

}  // namespace
}  // namespace qkv
