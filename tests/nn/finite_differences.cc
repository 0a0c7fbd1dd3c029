// SPDX-License-Identifier: Apache-2.0
#include "finite_differences.h"

#include <cmath>
#include <limits>

#include "qkv/support/error.h"
#include "random_stream.h"

namespace qkv::test {
namespace {

double* data_of(Tensor& tensor) { return static_cast<double*>(tensor.mutable_view().data()); }

double difference(Tensor& value, const std::vector<double>& direction, double h,
                  const std::function<double(double*)>& loss, double* magnitude) {
  const std::vector<double> before(data_of(value), data_of(value) + direction.size());
  const auto moved = [&](double step) {
    for (size_t n = 0; n < direction.size(); ++n) data_of(value)[n] = before[n] + step * direction[n];
    return loss(magnitude);
  };
  const double result = (moved(h) - moved(-h)) / (2 * h);
  std::copy(before.begin(), before.end(), data_of(value));
  return result;
}

void expect_direction(const Differentiated& tensor, const std::vector<double>& direction,
                      const std::function<double(double*)>& loss) {
  constexpr double kStep = 0x1p-8;
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  double magnitude = 0;
  double differences[3];
  for (int i = 0; i < 3; ++i) {
    differences[i] = difference(*tensor.value, direction, std::ldexp(kStep, -i), loss, &magnitude);
  }
  const double first = differences[1] + (differences[1] - differences[0]) / 3;
  const double second = differences[2] + (differences[2] - differences[1]) / 3;
  const double expected = second + (second - first) / 15;
  double gradient = 0;
  const auto* d = static_cast<const double*>(tensor.gradient->view().data());
  for (size_t n = 0; n < direction.size(); ++n) gradient += d[n] * direction[n];
  const double bound = std::fabs(second - first) + 256 * kEpsilon * magnitude / kStep;
  EXPECT_LE(std::fabs(gradient - expected), bound)
      << tensor.name << ": gradient " << gradient << ", difference " << expected;
}

}  // namespace

double inner_product(const Tensor& d_y, const Tensor& y, double* magnitude) {
  double sum = 0, terms = 0;
  for (int64_t n = 0; n < y.view().elements(); ++n) {
    const double term = load_as_double(y.dtype(), y.view().at(n)) * load_as_double(d_y.dtype(), d_y.view().at(n));
    sum += term;
    terms += std::fabs(term);
  }
  if (magnitude != nullptr) *magnitude = terms;
  return sum;
}

void expect_gradients(const std::vector<Differentiated>& tensors,
                      const std::function<double(double* magnitude)>& loss) {
  Stream stream(77);
  for (const Differentiated& tensor : tensors) {
    ASSERT_EQ(tensor.value->dtype(), DType::f64) << tensor.name;
    ASSERT_EQ(tensor.gradient->dtype(), DType::f64) << tensor.name;
    const auto count = static_cast<size_t>(tensor.value->view().elements());
    ASSERT_EQ(tensor.gradient->view().elements(), tensor.value->view().elements()) << tensor.name;
    if (count == 0) continue;
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<double> direction(count);
      if (trial < 2) {
        const double length = std::sqrt(static_cast<double>(count));
        for (double& x : direction) x = stream.normal() / length;
      } else {
        direction[stream.bits() % count] = 1;
      }
      expect_direction(tensor, direction, loss);
    }
  }
}

}  // namespace qkv::test
