// SPDX-License-Identifier: Apache-2.0
//
// Activations with gates, dropout by counter and scaled sums: every instruction set, dtype and layout, around the
// columns that kernels take at a time.
#include <functional>
#include <numbers>

#include "matmul_problem.h"
#include "operation.h"
#include "qkv/kernels/activate.h"
#include "qkv/support/random.h"

namespace qkv::test {
namespace {

constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                       Activation::silu};

/// Values and derivatives in long double, in forms that do not cancel; the magnitude of a derivative's terms, which
/// may; and the argument of the exponential behind a value, whose rounding changes the value by as many units.
struct Exact {
  long double value, derivative, terms, argument = 0;
};
Exact activated(Activation activation, long double x) {
  switch (activation) {
    case Activation::relu: return {std::max(x, 0.0L), x > 0 ? 1.0L : 0.0L, 0};
    case Activation::gelu: {
      const long double phi = std::erfc(-x * std::sqrt(0.5L)) / 2;
      const long double slope = x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
      return {x * phi, phi + slope, phi + std::fabs(slope)};
    }
    case Activation::gelu_tanh: {
      const long double root = 2 * std::sqrt(2 / std::numbers::pi_v<long double>);
      const long double u = root * (x + 0.044715L * x * x * x);
      const long double s = 1 / (1 + std::exp(-u)), other = 1 / (1 + std::exp(u));
      const long double slope = x * s * other * root * (1 + 3 * 0.044715L * x * x);
      return {x * s, s + slope, s + std::fabs(slope), std::fabs(u)};
    }
    case Activation::silu: {
      const long double s = 1 / (1 + std::exp(-x)), slope = x * s / (1 + std::exp(x));
      return {x * s, s + slope, s + std::fabs(slope)};
    }
    default: return {x, 1, 0};
  }
}

void expect_close(double value, long double expected, long double magnitude, DType dtype) {
  const double unit = unit_roundoff(compute_type(dtype));
  const long double bound = 8 * unit * (std::fabs(expected) + magnitude) +
                            (dtype == compute_type(dtype) ? 0 : unit_roundoff(dtype) * std::fabs(expected) + 0x1p-25L);
  ASSERT_LE(std::fabs(value - expected), bound) << value << " instead of " << static_cast<double>(expected);
}

void expect_activation(Activation activation, DType dtype, const Dims& shape, Layout layout, bool gated) {
  SCOPED_TRACE(concat("activation ", static_cast<int>(activation), " ", name(dtype), " ", shape, " ", name(layout)));
  const StridedTensor x = random_matrix(dtype, shape, layout, 1), gate = random_matrix(dtype, shape, layout, 2);
  const StridedTensor d_y = random_matrix(dtype, shape, layout, 3), y(dtype, shape, layout);
  const StridedTensor d_x(dtype, shape, layout), d_gate(dtype, shape, layout);
  const TensorView g = gated ? TensorView(gate.view()) : TensorView();
  activate(x.view(), g, activation, y.view());
  activate_backward(x.view(), g, activation, d_y.view(), {d_x.view(), gated ? d_gate.view() : MutableTensorView()});
  for (int64_t n = 0; n < x.view().elements(); ++n) {
    const long double at = element(x.view(), n), upstream = element(d_y.view(), n);
    const long double factor = gated ? element(gate.view(), n) : 1.0;
    const Exact exact = activated(activation, at);
    const long double value = exact.value * exact.argument;
    expect_close(element(y.view(), n), exact.value * factor, std::fabs(value * factor), dtype);
    expect_close(element(d_x.view(), n), upstream * factor * exact.derivative,
                 (1 + exact.argument) * exact.terms * std::fabs(upstream * factor), dtype);
    if (gated) expect_close(element(d_gate.view(), n), upstream * exact.value, std::fabs(upstream * value), dtype);
  }
  EXPECT_TRUE(y.padding_intact() && d_x.padding_intact());
}

TEST(elementwise, activations_and_their_derivatives) {
  for_each_target([](const std::string&) {
    for (const Activation activation : kActivations) {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        expect_activation(activation, dtype, {3, 1100}, Layout::contiguous, true);
        for (const Layout layout : {Layout::padded, Layout::strided, Layout::transposed, Layout::reversed}) {
          expect_activation(activation, dtype, {5, 2, 19}, layout, false);
        }
      }
    }
  });
}

TEST(elementwise, dropout_is_a_function_of_row_and_column) {
  for_each_target([](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      constexpr int64_t kRows = 40, kWidth = 1100;
      const StridedTensor x = random_matrix(dtype, {kRows, kWidth}, Layout::contiguous, 1);
      const StridedTensor residual = random_matrix(dtype, {kRows, kWidth}, Layout::padded, 2);
      const DropoutOptions options = {.p = 0.25, .seed = 9, .first_row = 1000};
      const StridedTensor y(dtype, {kRows, kWidth}, Layout::contiguous);
      dropout(x.view(), options, y.view(), residual.view(), 3);
      int64_t dropped = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        const uint64_t key = dropout_row_key(9, 0, 0, 1000 + r);
        for (int64_t c = 0; c < kWidth; ++c) {
          const bool drops = dropout_bits(key, c) < dropout_threshold(0.25);
          dropped += drops;
          const long double value = element(x.view(), r * kWidth + c), rest = element(residual.view(), r * kWidth + c);
          expect_close(element(y.view(), r * kWidth + c), (drops ? 0 : value * 4 / 3) + rest,
                       std::fabs(value) + std::fabs(rest), dtype);
        }
      }
      // Six standard deviations of a binomial count.
      const double n = kRows * kWidth;
      EXPECT_LE(std::fabs(static_cast<double>(dropped) - 0.25 * n), 6 * std::sqrt(n * 0.25 * 0.75));
      const StridedTensor part(dtype, {1, kWidth}, Layout::contiguous);
      const TensorView row(dtype, x.view().at(17 * kWidth), {1, kWidth});
      const TensorView rest(dtype, residual.view().at(17 * residual.view().stride(0)), {1, kWidth});
      dropout(row, {.p = 0.25, .seed = 9, .first_row = 1017}, part.view(), rest);
      EXPECT_EQ(std::memcmp(part.view().data(), y.view().at(17 * kWidth), static_cast<size_t>(kWidth * size_of(dtype))),
                0);
    }
  });
}

TEST(elementwise, a_dropped_nan_is_0_and_p_0_keeps_everything) {
  StridedTensor x(DType::f32, {1, 64}, Layout::contiguous);
  x.fill([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  const StridedTensor y(DType::f32, {1, 64}, Layout::contiguous);
  dropout(x.view(), {.p = 0.5, .seed = 1}, y.view());
  int zeros = 0;
  for (int64_t n = 0; n < 64; ++n) {
    const double value = element(y.view(), n);
    EXPECT_TRUE(value == 0 || std::isnan(value));
    zeros += value == 0;
  }
  EXPECT_GT(zeros, 0);
  EXPECT_LT(zeros, 64);
  x.fill([](int64_t n) { return static_cast<double>(n); });
  dropout(x.view(), {}, y.view());
  EXPECT_EQ(bits_of(x.view()), bits_of(y.view()));
}

TEST(elementwise, scaled_sums_in_place) {
  for_each_target([](const std::string&) {
    StridedTensor x = random_matrix(DType::f32, {7, 1030}, Layout::padded, 1);
    const std::vector<double> before = elements(x.view());
    const StridedTensor residual = random_matrix(DType::bf16, {7, 1030}, Layout::transposed, 2);
    add_scaled(x.view(), -2.5, residual.view(), x.view());
    for (int64_t n = 0; n < 7 * 1030; ++n) {
      const float product = -2.5F * static_cast<float>(before[static_cast<size_t>(n)]);
      EXPECT_EQ(element(x.view(), n), static_cast<double>(product + static_cast<float>(element(residual.view(), n))));
    }
  });
}

void expect_refusal(const char* expected, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << expected;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(elementwise, refusals_name_the_operand) {
  const StridedTensor x = random_matrix(DType::f32, {3, 20}, Layout::contiguous, 1),
                      y(DType::f32, {3, 20}, Layout::contiguous);
  const StridedTensor small = random_matrix(DType::f32, {3, 19}, Layout::contiguous, 1);
  expect_refusal("activate: gate should be [3, 20], got [3, 19]",
                 [&] { activate(x.view(), small.view(), Activation::relu, y.view()); });
  expect_refusal("activate_backward: a gradient of the gate is wanted, but there is no gate",
                 [&] { activate_backward(x.view(), {}, Activation::relu, x.view(), {.x = {}, .gate = y.view()}); });
  expect_refusal("dropout: p should lie in [0, 1), got 1", [&] { dropout(x.view(), {.p = 1}, y.view()); });
  expect_refusal("add_scaled: y is needed", [&] { add_scaled(x.view(), 1, {}, {}); });
}

}  // namespace
}  // namespace qkv::test
