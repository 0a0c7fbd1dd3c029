// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "qkv/tensor/view.h"

namespace qkv {
namespace {

/// Every byte a view names, the slow way, with repetition.
std::vector<const char*> element_addresses(const TensorView& view) {
  std::vector<const char*> result;
  const int64_t count = view.elements();
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index, offset = 0;
    for (int axis = view.rank() - 1; axis >= 0; --axis) {
      offset += rest % view.size(axis) * view.stride(axis);
      rest /= view.size(axis);
    }
    result.push_back(static_cast<const char*>(view.at(offset)));
  }
  return result;
}

bool brute_overlap(const TensorView& a, const TensorView& b) {
  std::set<const char*> bytes;
  for (const char* address : element_addresses(a)) {
    for (int64_t i = 0; i < size_of(a.dtype()); ++i) bytes.insert(address + i);
  }
  for (const char* address : element_addresses(b)) {
    for (int64_t i = 0; i < size_of(b.dtype()); ++i) {
      if (bytes.count(address + i) != 0) return true;
    }
  }
  return false;
}

bool brute_overlaps_itself(const TensorView& view) {
  const std::vector<const char*> addresses = element_addresses(view);
  return std::set<const char*>(addresses.begin(), addresses.end()).size() != addresses.size();
}

TensorView random_view(std::mt19937& random, const char* buffer, int64_t origin_range, int64_t stride_range) {
  const DType dtypes[] = {DType::u8, DType::f16, DType::f32, DType::f64};
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Dims shape, strides;
  const int64_t rank = pick(0, 4);
  for (int64_t axis = 0; axis < rank; ++axis) {
    shape.push_back(pick(0, 30) == 0 ? 0 : pick(1, 4));
    strides.push_back(pick(-stride_range, stride_range));
  }
  return TensorView(dtypes[pick(0, 3)], buffer + 2048 + pick(-origin_range, origin_range), shape, strides);
}

TEST(OverlapTest, AgreesWithBruteForce) {
  static const char buffer[4096] = {};
  std::mt19937 random(11);
  int yes = 0, no = 0;
  for (int trial = 0; trial < 40000; ++trial) {
    const int64_t stride_range = 1 + trial % 24;
    const TensorView a = random_view(random, buffer, 60, stride_range);
    const TensorView b = random_view(random, buffer, 60, stride_range);
    const bool expected = brute_overlap(a, b);
    ASSERT_EQ(overlap(a, b), expected) << trial;
    ASSERT_EQ(overlap(b, a), expected) << trial;
    ++(expected ? yes : no);
  }
  EXPECT_GT(yes, 4000);
  EXPECT_GT(no, 4000);
}

TEST(OverlapTest, OfAViewWithItselfAgreesWithBruteForce) {
  static const char buffer[4096] = {};
  std::mt19937 random(12);
  int yes = 0, no = 0;
  for (int trial = 0; trial < 40000; ++trial) {
    const TensorView view = random_view(random, buffer, 0, 1 + trial % 60);
    const bool expected = brute_overlaps_itself(view);
    ASSERT_EQ(overlaps_itself(view), expected) << trial << " " << to_string(view.shape()) << to_string(view.strides());
    ++(expected ? yes : no);
  }
  EXPECT_GT(yes, 4000);
  EXPECT_GT(no, 4000);
}

// q, k and v as the three parts of one [B, T, 3, H, D] buffer: their extents interleave, their elements do not.
TEST(OverlapTest, PartsOfOneFusedBufferAreApart) {
  constexpr int64_t B = 3, T = 1000, H = 12, D = 64;
  const auto base = reinterpret_cast<const float*>(uintptr_t{1} << 32);  // never dereferenced
  const auto part = [&](int64_t which) {
    return TensorView(base + which * H * D, Dims{B, H, T, D}, Dims{T * 3 * H * D, D, 3 * H * D, 1});
  };
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(overlaps_itself(part(i)));
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(overlap(part(i), part(j)), i == j) << i << j;
  }
  // One element wider and the parts touch.
  const TensorView wider(base, Dims{B, T, H * D + 1}, Dims{T * 3 * H * D, 3 * H * D, 1});
  EXPECT_TRUE(overlap(wider, part(1)));
  EXPECT_FALSE(overlap(wider, part(2)));
}

TEST(OverlapTest, HeadsInterleavedElementByElementAreApart) {
  const auto base = reinterpret_cast<const float*>(uintptr_t{1} << 32);
  const int64_t n = int64_t{1} << 30;
  EXPECT_FALSE(overlap(TensorView(base, Dims{n}, Dims{2}), TensorView(base + 1, Dims{n}, Dims{2})));
  EXPECT_TRUE(overlap(TensorView(base, Dims{n}, Dims{2}), TensorView(base + 4, Dims{n}, Dims{2})));
  EXPECT_FALSE(overlap(TensorView(base, Dims{n}, Dims{-2}), TensorView(base + 1, Dims{n}, Dims{-2})));
}

TEST(OverlapTest, CountsBytesNotElements) {
  alignas(8) const char buffer[64] = {};
  const TensorView wide(DType::f64, buffer, Dims{1});
  EXPECT_TRUE(overlap(wide, TensorView(DType::u8, buffer + 7, Dims{1})));
  EXPECT_FALSE(overlap(wide, TensorView(DType::u8, buffer + 8, Dims{1})));
  // Every other f32 of the buffer, and the bytes in between.
  const TensorView even(DType::f32, buffer, Dims{8}, Dims{2});
  EXPECT_FALSE(overlap(even, TensorView(DType::u8, buffer + 4, Dims{8, 4}, Dims{8, 1})));
  EXPECT_TRUE(overlap(even, TensorView(DType::u8, buffer + 4, Dims{7, 5}, Dims{8, 1})));
}

TEST(OverlapTest, EmptyAndAbsentViewsTouchNothing) {
  const float data[4] = {};
  EXPECT_FALSE(overlap(TensorView(data, Dims{0, 4}), TensorView(data, Dims{4})));
  EXPECT_FALSE(overlap(TensorView(), TensorView(data, Dims{4})));
  EXPECT_FALSE(overlaps_itself(TensorView()));
  EXPECT_FALSE(overlaps_itself(TensorView(data, Dims{0, 4}, Dims{0, 0})));
}

TEST(OverlapTest, ZeroStrideNamesAnElementTwice) {
  const float data[4] = {};
  EXPECT_TRUE(overlaps_itself(TensorView(data, Dims{2, 4}, Dims{0, 1})));
  EXPECT_FALSE(overlaps_itself(TensorView(data, Dims{1, 4}, Dims{0, 1})));
  EXPECT_TRUE(overlaps_itself(TensorView(data, Dims{2, 3}, Dims{1, 1})));
  EXPECT_FALSE(overlaps_itself(TensorView(data, Dims{2, 2}, Dims{-1, 2})));
}

// Two progressions meet by the Chinese remainder theorem, far along. Trying indices one by one would take 10^9 steps;
// the search computes them.
TEST(OverlapTest, LongCoprimeStridesAreExact) {
  const auto base = reinterpret_cast<const uint8_t*>(uintptr_t{1} << 40);
  const int64_t p = 1000000007, q = 998244353;
  // base + p x = base + 1 + q y has its smallest solution x0 = p^-1 mod q.
  int64_t x0 = 0;
  {
    int64_t a = p % q, m = q, u = 1, w = 0;
    while (a != 0) {
      const int64_t t = m / a;
      m -= t * a, std::swap(a, m);
      w -= t * u, std::swap(u, w);
    }
    x0 = (w % q + q) % q;
  }
  ASSERT_EQ(static_cast<int64_t>(static_cast<__int128>(p) * x0 % q), 1);
  const TensorView long_b(base + 1, Dims{q * 2}, Dims{q});
  EXPECT_TRUE(overlap(TensorView(base, Dims{x0 + 1}, Dims{p}), long_b));
  EXPECT_FALSE(overlap(TensorView(base, Dims{x0}, Dims{p}), long_b));
}

// Strides beyond any memory: the answer is the careful one, and nothing overflows.
TEST(OverlapTest, AbsurdStridesAnswerYes) {
  const float data[4] = {};
  const int64_t huge = int64_t{1} << 62;
  EXPECT_TRUE(overlap(TensorView(data, Dims{3}, Dims{huge}), TensorView(data + 1, Dims{2})));
  EXPECT_TRUE(overlaps_itself(TensorView(data, Dims{3, 2}, Dims{huge, -huge})));
}

}  // namespace
}  // namespace qkv
