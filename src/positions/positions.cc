// SPDX-License-Identifier: Apache-2.0
#include "qkv/positions/positions.h"

#include <bit>
#include <cmath>

#include "attention/check_view.h"
#include "positions/integer_positions.h"
#include "qkv/support/error.h"

namespace qkv {

std::vector<int64_t> integer_positions(const TensorView& positions, const char* operation) {
  require(static_cast<bool>(positions), operation, ": positions are needed, none came");
  require(positions.rank() == 1, operation, ": positions should have 1 axis, got ", positions.shape());
  require(positions.dtype() == DType::i64 || positions.dtype() == DType::i32, operation,
          ": positions should be i64 or i32, got ", name(positions.dtype()));
  constexpr int64_t kLargest = int64_t{1} << 31;
  std::vector<int64_t> values(static_cast<size_t>(positions.size(0)));
  for (size_t n = 0; n < values.size(); ++n) {
    values[n] = integer_at(positions, static_cast<int64_t>(n));
    require(values[n] >= -kLargest && values[n] <= kLargest, operation, ": position ", values[n], " at ", n,
            " is beyond 2^31");
  }
  return values;
}

void sinusoidal_positions(const TensorView& positions, const SinusoidalOptions& options, const MutableTensorView& y) {
  const std::vector<int64_t> values = integer_positions(positions, "sinusoidal");
  require(std::isfinite(options.base) && options.base > 0, "sinusoidal: base should be a positive number, got ",
          options.base);
  require(y && y.rank() == 2 && is_floating(y.dtype()), "sinusoidal: y should be a floating [N, width], got ",
          y.shape());
  require(y.size(0) == static_cast<int64_t>(values.size()), "sinusoidal: y has ", y.size(0), " rows, positions have ",
          values.size());
  require(!overlaps_itself(y) && !overlap(y, positions), "sinusoidal: y overlaps itself or the positions");
  const int64_t width = y.size(1), sines = (width + 1) / 2;
  for (int64_t i = 0; i < sines; ++i) {
    const double frequency = std::pow(options.base, -2 * static_cast<double>(i) / static_cast<double>(width));
    const int64_t sine = options.halves ? i : 2 * i;
    const int64_t cosine = options.halves ? sines + i : 2 * i + 1;
    for (size_t n = 0; n < values.size(); ++n) {
      const double phase = static_cast<double>(values[n]) * frequency;
      const int64_t row = static_cast<int64_t>(n) * y.stride(0);
      store_from_double(y.dtype(), y.at(row + sine * y.stride(1)), std::sin(phase));
      if (cosine < width) store_from_double(y.dtype(), y.at(row + cosine * y.stride(1)), std::cos(phase));
    }
  }
}

std::vector<double> alibi_slopes(int64_t heads) {
  require(heads >= 0, "alibi: heads should be 0 or more, got ", heads);
  std::vector<double> slopes;
  if (heads == 0) return slopes;
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto slope = [](int64_t i, int64_t of) {
    return std::exp2(-8 * static_cast<double>(i) / static_cast<double>(of));
  };
  for (int64_t i = 1; i <= power; ++i) slopes.push_back(slope(i, power));
  for (int64_t i = 1; i <= heads - power; ++i) slopes.push_back(slope(2 * i - 1, 2 * power));
  return slopes;
}

}  // namespace qkv
