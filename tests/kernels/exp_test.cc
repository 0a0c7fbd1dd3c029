// SPDX-License-Identifier: Apache-2.0
//
// exp and tanh of every instruction set against long double, in units in the last place of the true result.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_kernels.h"
#include "operation.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

/// Largest errors, stated in docs/numerics.md.
constexpr double kExpUlps = 1.5;
constexpr double kTanhUlps = 2.5;

template <class T>
double ulps(T value, long double expected) {
  if (std::isnan(value) && std::isnan(expected)) return 0;
  const T nearest = static_cast<T>(expected);
  if (value == nearest) return 0;
  const T magnitude = std::fabs(nearest);
  const long double unit = static_cast<long double>(std::nextafter(magnitude, std::numeric_limits<T>::infinity())) -
                           static_cast<long double>(magnitude);
  return static_cast<double>(std::fabs(static_cast<long double>(value) - expected) / unit);
}

/// Non-positive numbers of every size: all binades, and densely where results are normal.
template <class T>
std::vector<T> non_positive(int count, double lowest) {
  std::vector<T> values = {T{0},
                           -T{0},
                           std::numeric_limits<T>::lowest(),
                           -std::numeric_limits<T>::min(),
                           -std::numeric_limits<T>::denorm_min(),
                           -std::numeric_limits<T>::infinity()};
  Stream stream(1);
  for (int n = 0; n < count; ++n) {
    values.push_back(static_cast<T>(lowest * stream.uniform()));
    values.push_back(static_cast<T>(-std::exp2(60 * stream.uniform() - 50)));
  }
  return values;
}

template <class T, class Function, class Expected>
double largest_ulps(const std::vector<T>& x, Function function, Expected expected) {
  std::vector<T> y(x.size());
  function(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double largest = 0;
  for (size_t n = 0; n < x.size(); ++n) {
    const double error = ulps(y[n], expected(static_cast<long double>(x[n])));
    EXPECT_FALSE(std::isnan(error)) << x[n] << " gives " << y[n];
    largest = std::max(largest, error);
  }
  return largest;
}

template <class T>
void expect_exp(double lowest) {
  const auto expected = [](long double x) { return std::exp(x); };
  for_each_target([&](const std::string&) {
    EXPECT_LE(largest_ulps(non_positive<T>(200'000, lowest), kernels().attention<T>().exp, expected), kExpUlps);
  });
}

TEST(exp, f32_of_non_positive_numbers) { expect_exp<float>(-105); }
TEST(exp, f64_of_non_positive_numbers) { expect_exp<double>(-750); }

template <class T>
void expect_tanh() {
  std::vector<T> x = non_positive<T>(100'000, -10);
  for (size_t n = 0; n < x.size(); n += 2) x[n] = -x[n];
  const auto expected = [](long double value) { return std::tanh(value); };
  for_each_target(
      [&](const std::string&) { EXPECT_LE(largest_ulps(x, kernels().attention<T>().tanh, expected), kTanhUlps); });
}

TEST(tanh, f32) { expect_tanh<float>(); }
TEST(tanh, f64) { expect_tanh<double>(); }

TEST(exp, keeps_nan_whatever_its_payload) {
  for_each_target([&](const std::string&) {
    for (uint32_t payload = 1; payload < 0x400000; payload += 4097) {
      const auto nan = std::bit_cast<float>(0x7FC00000u | payload);
      float y[2] = {0, 0};
      const float x[2] = {nan, -nan};
      kernels().f32->exp(x, y, 2);
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1])) << payload;
    }
  });
}

TEST(exp, writes_no_element_beyond_the_count) {
  for_each_target([&](const std::string&) {
    for (int64_t n = 0; n <= 40; ++n) {
      const std::vector<float> x(48, -1);
      std::vector<float> y(48, 7);
      kernels().f32->exp(x.data(), y.data(), n);
      for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(y[static_cast<size_t>(i)] == 7, i >= n);
    }
  });
}

}  // namespace
}  // namespace qkv::test
