// SPDX-License-Identifier: Apache-2.0
//
// T5's buckets with exact floors. A logarithm in floating point puts distances that lie on a boundary (16, 32, 64 of
// 8 exact ones and max_distance 128) on either side of it; where it comes close to a boundary, integers decide:
//   n <= log(d/e) / log(M/e) * (count-e)   <=>   d^(count-e) >= M^n * e^(count-e-n)
#include "attention/bias.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace qkv {
namespace {

enum class Rounding : uint8_t { down, up };

/// A positive number as limbs (least significant first) times 2^(32 * exponent), cut to `precision` limbs by rounding
/// down or up. Without a cut it is exact.
struct Number {
  std::vector<uint32_t> limbs;
  int64_t exponent = 0;
};

Number from_integer(int64_t value) {
  const uint64_t bits = static_cast<uint64_t>(value);
  Number number{{static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)}, 0};
  if (number.limbs.back() == 0) number.limbs.pop_back();
  return number;
}

void cut(Number& number, size_t precision, Rounding rounding) {
  if (number.limbs.size() <= precision) return;
  const size_t dropped = number.limbs.size() - precision;
  number.limbs.erase(number.limbs.begin(), number.limbs.begin() + static_cast<std::ptrdiff_t>(dropped));
  number.exponent += static_cast<int64_t>(dropped);
  if (rounding == Rounding::down) return;
  for (uint32_t& limb : number.limbs) {
    if (++limb != 0) return;
  }
  number.limbs.push_back(1);
}

Number multiply(const Number& a, const Number& b, size_t precision, Rounding rounding) {
  Number product{std::vector<uint32_t>(a.limbs.size() + b.limbs.size(), 0), a.exponent + b.exponent};
  for (size_t i = 0; i < a.limbs.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < b.limbs.size(); ++j) {
      carry += product.limbs[i + j] + static_cast<uint64_t>(a.limbs[i]) * b.limbs[j];
      product.limbs[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    product.limbs[i + b.limbs.size()] = static_cast<uint32_t>(carry);
  }
  if (product.limbs.back() == 0) product.limbs.pop_back();
  cut(product, precision, rounding);
  return product;
}

Number power(int64_t base, int64_t exponent, size_t precision, Rounding rounding) {
  Number result = from_integer(1);
  Number square = from_integer(base);
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = multiply(result, square, precision, rounding);
    if (exponent > 1) square = multiply(square, square, precision, rounding);
  }
  return result;
}

/// a >= b. Leading limbs are nonzero; a limb below the lowest counts as 0.
bool at_least(const Number& a, const Number& b) {
  const int64_t a_top = a.exponent + static_cast<int64_t>(a.limbs.size());
  const int64_t b_top = b.exponent + static_cast<int64_t>(b.limbs.size());
  if (a_top != b_top) return a_top > b_top;
  const auto limb = [](const Number& x, int64_t place) {
    return place < x.exponent ? 0u : x.limbs[static_cast<size_t>(place - x.exponent)];
  };
  for (int64_t place = a_top - 1; place >= std::min(a.exponent, b.exponent); --place) {
    if (limb(a, place) != limb(b, place)) return limb(a, place) > limb(b, place);
  }
  return true;
}

/// distance^count >= largest^n * exact^(count-n), for n <= count: bounds of both sides, tightened until they tell.
/// Equal sides have exponents of at most 60 bits once common factors are gone, so their bounds soon become exact.
bool reaches(int64_t distance, int64_t exact, int64_t largest, int64_t count, int64_t n) {
  const int64_t factor = std::gcd(distance, std::gcd(exact, largest));
  const int64_t divisor = std::gcd(count, n);
  const auto left = [&](size_t precision, Rounding rounding) {
    return power(distance / factor, count / divisor, precision, rounding);
  };
  const auto right = [&](size_t precision, Rounding rounding) {
    return multiply(power(largest / factor, n / divisor, precision, rounding),
                    power(exact / factor, (count - n) / divisor, precision, rounding), precision, rounding);
  };
  for (size_t precision = 8;; precision *= 2) {
    if (at_least(left(precision, Rounding::down), right(precision, Rounding::up))) return true;
    if (!at_least(left(precision, Rounding::up), right(precision, Rounding::down))) return false;
  }
}

/// The bucket of a distance >= 0 among `count` of one direction.
int64_t bucket_of(int64_t distance, int64_t count, int64_t max_distance) {
  const int64_t exact = count / 2;
  if (distance < exact) return distance;
  if (distance >= max_distance || exact == 0) return count - 1;
  const int64_t logarithmic = count - exact;
  const auto log_ratio = [exact](int64_t x) {
    return std::log1p(static_cast<double>(x - exact) / static_cast<double>(exact));
  };
  const double place = log_ratio(distance) / log_ratio(max_distance) * static_cast<double>(logarithmic);
  const double nearest = std::round(place);
  int64_t floor = static_cast<int64_t>(place);
  if (std::fabs(place - nearest) < 1e-12 * (1 + place)) {  // some thousand times the error of the two logarithms
    const int64_t boundary = std::min(static_cast<int64_t>(nearest), logarithmic);
    floor = reaches(distance, exact, max_distance, logarithmic, boundary) ? boundary : boundary - 1;
  }
  return exact + std::min(floor, logarithmic - 1);
}

}  // namespace

int64_t relative_bucket(int64_t distance, int64_t buckets, const Buckets& rule) {
  if (rule.kind == Buckets::Kind::causal) return bucket_of(std::max<int64_t>(distance, 0), buckets, rule.max_distance);
  const int64_t half = buckets / 2;
  return (distance < 0 ? half : 0) + bucket_of(std::abs(distance), half, rule.max_distance);
}

}  // namespace qkv
