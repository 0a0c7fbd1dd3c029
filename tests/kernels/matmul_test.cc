// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on every instruction set against plain loops: dtypes, sizes around lanes, tiles and blocks, layouts,
// bias, activation, gate, residual, gradients, and what NaN and infinities do.
#include "qkv/kernels/matmul.h"

#include <limits>

#include "matmul_problem.h"
#include "operation.h"

namespace qkv::test {
namespace {

struct DTypes {
  DType a, b, c;
};
constexpr DTypes kDTypes[] = {{DType::f32, DType::f32, DType::f32},   {DType::f64, DType::f64, DType::f64},
                              {DType::bf16, DType::bf16, DType::f32}, {DType::bf16, DType::bf16, DType::bf16},
                              {DType::f32, DType::bf16, DType::f32},  {DType::bf16, DType::f32, DType::f16},
                              {DType::f16, DType::f16, DType::f16}};

void expect_size(const DTypes& dtypes, int64_t M, int64_t N, int64_t K, Layout a_layout = Layout::contiguous,
                 Layout b_layout = Layout::contiguous, Layout c_layout = Layout::contiguous) {
  SCOPED_TRACE(concat(name(dtypes.a), " ", name(dtypes.b), " ", name(dtypes.c), " M=", M, " N=", N, " K=", K, " ",
                      name(a_layout), " ", name(b_layout), " ", name(c_layout)));
  const StridedTensor a = random_matrix(dtypes.a, {M, K}, a_layout, 1);
  const StridedTensor b = random_matrix(dtypes.b, {K, N}, b_layout, 2);
  const StridedTensor c(dtypes.c, {M, N}, c_layout);
  matmul(a.view(), b.view(), c.view());
  expect_product(a.view(), b.view(), c.view());
  EXPECT_TRUE(c.padding_intact());
  const StridedTensor packed(dtypes.c, {M, N}, c_layout);
  matmul(a.view(), PackedMatrix(b.view()), packed.view());
  EXPECT_EQ(bits_of(c.view()), bits_of(packed.view())) << "packed";
}

TEST(matmul, sizes_around_lanes_tiles_and_blocks) {
  for_each_target([](const std::string&) {
    for (const DTypes& dtypes : kDTypes) {
      for (const int64_t M : {1, 5, 6, 7, 49}) {
        for (const int64_t N : {1, 15, 16, 17, 64, 65, 130}) {
          for (const int64_t K : {1, 2, 7, 33}) expect_size(dtypes, M, N, K);
        }
      }
    }
  });
}

TEST(matmul, blocks_of_k_and_more_columns_than_an_item_has) {
  for_each_target([](const std::string&) {
    for (const DTypes& dtypes : kDTypes) {
      for (const int64_t K : {511, 512, 513, 1030}) expect_size(dtypes, 9, 19, K);
      expect_size(dtypes, 3, 530, 20);
      expect_size(dtypes, 100, 70, 520);
    }
  });
}

TEST(matmul, every_layout_of_every_operand) {
  constexpr Layout kLayouts[] = {Layout::contiguous, Layout::reversed, Layout::padded, Layout::strided,
                                 Layout::transposed};
  for_each_target([&](const std::string&) {
    for (const DTypes& dtypes : kDTypes) {
      for (const Layout layout : kLayouts) {
        expect_size(dtypes, 50, 70, 67, layout);
        expect_size(dtypes, 50, 70, 67, Layout::contiguous, layout);
        expect_size(dtypes, 13, 70, 67, layout, layout, layout);
      }
      expect_size(dtypes, 13, 70, 67, Layout::expanded, Layout::expanded);
    }
  });
}

TEST(matmul, empty_sizes_give_nothing_or_zero) {
  for_each_target([](const std::string&) {
    for (const DTypes& dtypes : kDTypes) {
      expect_size(dtypes, 0, 5, 4);
      expect_size(dtypes, 5, 0, 4);
      expect_size(dtypes, 5, 20, 0);
      expect_size(dtypes, 0, 0, 0);
    }
  });
}

TEST(matmul, sums_that_cancel_stay_within_the_bound) {
  for_each_target([](const std::string&) {
    constexpr int64_t M = 7, N = 20, K = 1300;
    StridedTensor a(DType::f32, {M, K}, Layout::contiguous), b(DType::f32, {K, N}, Layout::contiguous);
    Stream stream(3);
    a.fill([&](int64_t) {
      return std::exp2(static_cast<double>(stream.integer(-20, 20))) * (stream.chance(0.5) ? 1 : -1);
    });
    b.fill([&](int64_t) { return stream.normal() + 100; });
    const StridedTensor c(DType::f32, {M, N}, Layout::contiguous);
    matmul(a.view(), b.view(), c.view());
    expect_product(a.view(), b.view(), c.view());
  });
}

/// The activations in long double, in forms that do not cancel.
long double activated(Activation activation, long double x) {
  switch (activation) {
    case Activation::relu: return std::max(x, 0.0L);
    case Activation::gelu: return x * std::erfc(-x * std::sqrt(0.5L)) / 2;
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi_v<long double>) * (x + 0.044715L * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    default: return x;
  }
}

constexpr Activation kActivations[] = {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                       Activation::silu};

void expect_ending(DType dtype, Activation activation, Layout layout) {
  SCOPED_TRACE(concat(name(dtype), " activation ", static_cast<int>(activation), " ", name(layout)));
  constexpr int64_t M = 50, N = 67, K = 30;
  const StridedTensor a = random_matrix(dtype, {M, K}, Layout::contiguous, 1);
  const StridedTensor b = random_matrix(dtype, {K, N}, Layout::contiguous, 2);
  const StridedTensor bias = random_matrix(dtype, {N}, Layout::strided, 3);
  const StridedTensor gate = random_matrix(dtype, {M, N}, layout, 4);
  const StridedTensor residual = random_matrix(dtype, {M, N}, layout, 5);
  const StridedTensor c(dtype, {M, N}, layout);
  matmul(a.view(), b.view(), c.view(),
         {.bias = bias.view(), .activation = activation, .gate = gate.view(), .residual = residual.view()});
  const ExactProduct exact = exact_product(a.view(), b.view());
  const double unit = unit_roundoff(compute_type(dtype));
  for (int64_t n = 0; n < M * N; ++n) {
    const long double x = exact.sums[static_cast<size_t>(n)] + element(bias.view(), n % N);
    const long double error_of_x =
        roundings(K) * unit * (exact.magnitudes[static_cast<size_t>(n)] + std::fabs(element(bias.view(), n % N)));
    const long double g = element(gate.view(), n);
    const long double expected = activated(activation, x) * g + element(residual.view(), n);
    // No activation is steeper than 1.13; its own error is a few units, as are gate and residual.
    const long double bound = 1.13L * error_of_x * std::fabs(g) + 8 * unit * (std::fabs(x * g) + std::fabs(expected)) +
                              (dtype == compute_type(dtype) ? 0 : unit_roundoff(dtype)) * std::fabs(expected);
    ASSERT_LE(std::fabs(element(c.view(), n) - expected), bound) << "element " << n;
  }
  EXPECT_TRUE(c.padding_intact());
}

TEST(matmul, bias_activation_gate_and_residual) {
  for_each_target([](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const Activation activation : kActivations) {
        expect_ending(dtype, activation, Layout::contiguous);
        expect_ending(dtype, activation, Layout::transposed);
      }
    }
  });
}

TEST(matmul, activations_over_their_whole_range) {
  for_each_target([](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      constexpr int64_t N = 6001;
      StridedTensor b(dtype, {1, N}, Layout::contiguous);
      b.fill([](int64_t n) { return static_cast<double>(n - N / 2) * 0.0125; });
      StridedTensor one(dtype, {1, 1}, Layout::contiguous);
      one.fill([](int64_t) { return 1; });
      for (const Activation activation : kActivations) {
        const StridedTensor c(dtype, {1, N}, Layout::contiguous);
        matmul(one.view(), b.view(), c.view(), {.activation = activation});
        for (int64_t n = 0; n < N; ++n) {
          const double x = element(b.view(), n);
          const long double expected = activated(activation, x);
          // Relative, but for what vanishes into the subnormal numbers.
          const long double smallest = dtype == DType::f64 ? 0x1p-1070L : 0x1p-145L;
          const double units = 4 * std::max(1.0, activation == Activation::gelu_tanh ? std::fabs(x * x * x) / 4 : 1.0) *
                               std::max(1.0, activation == Activation::silu ? std::fabs(x) / 4 : 1.0);
          ASSERT_LE(std::fabs(element(c.view(), n) - expected),
                    2 * units * unit_roundoff(dtype) * std::fabs(expected) + smallest * std::max(1.0, std::fabs(x)))
              << "activation " << static_cast<int>(activation) << " of " << x;
        }
      }
    }
  });
}

TEST(matmul, residual_may_be_c_itself_and_adds) {
  for_each_target([](const std::string&) {
    const StridedTensor a = random_matrix(DType::f32, {60, 33}, Layout::contiguous, 1);
    const StridedTensor b = random_matrix(DType::f32, {33, 70}, Layout::contiguous, 2);
    const StridedTensor before = random_matrix(DType::f32, {60, 70}, Layout::contiguous, 3);
    const StridedTensor c = random_matrix(DType::f32, {60, 70}, Layout::padded, 3);
    const StridedTensor apart(DType::f32, {60, 70}, Layout::contiguous);
    matmul(a.view(), b.view(), c.view(), {.residual = c.view()});
    matmul(a.view(), b.view(), apart.view(), {.residual = before.view()});
    EXPECT_EQ(bits_of(c.view()), bits_of(apart.view()));
  });
}

/// <x, y> over all elements.
double inner(const TensorView& x, const TensorView& y) {
  const std::vector<double> a = elements(x), b = elements(y);
  double sum = 0;
  for (size_t n = 0; n < a.size(); ++n) sum += a[n] * b[n];
  return sum;
}

TEST(matmul, gradients_are_the_adjoints_of_the_product) {
  for_each_target([](const std::string&) {
    constexpr int64_t M = 37, N = 66, K = 53;
    const auto random = [](const Dims& shape, uint64_t seed) {
      return random_matrix(DType::f64, shape, Layout::contiguous, seed);
    };
    const StridedTensor a = random({M, K}, 1), b = random({K, N}, 2), d_c = random({M, N}, 3);
    const StridedTensor t_a = random({M, K}, 4), t_b = random({K, N}, 5), t_bias = random({N}, 6);
    const StridedTensor d_a(DType::f64, {M, K}, Layout::contiguous), d_b(DType::f64, {K, N}, Layout::transposed),
        d_bias(DType::f64, {N}, Layout::contiguous), moved(DType::f64, {M, N}, Layout::contiguous);
    matmul(d_c.view(), transposed(b.view()), d_a.view());
    matmul(transposed(a.view()), d_c.view(), d_b.view());
    column_sums(d_c.view(), d_bias.view());
    const double bound = 1e4 * 0x1p-53 * static_cast<double>(M * N);
    matmul(t_a.view(), b.view(), moved.view());
    EXPECT_NEAR(inner(d_c.view(), moved.view()), inner(d_a.view(), t_a.view()), bound);
    matmul(a.view(), t_b.view(), moved.view());
    EXPECT_NEAR(inner(d_c.view(), moved.view()), inner(d_b.view(), t_b.view()), bound);
    const TensorView rows(DType::f64, t_bias.view().data(), {M, N}, {0, 1});
    EXPECT_NEAR(inner(d_c.view(), rows), inner(d_bias.view(), t_bias.view()), bound);
  });
}

TEST(column_sums, of_bf16_are_summed_in_f32_and_rounded_once) {
  for_each_target([](const std::string&) {
    // 0.5 added to 256 a thousand times is lost in bf16.
    StridedTensor x(DType::bf16, {1001, 20}, Layout::contiguous);
    x.fill([](int64_t n) { return n < 20 ? 256 : 0.5; });
    const StridedTensor sums(DType::bf16, {20}, Layout::contiguous);
    column_sums(x.view(), sums.view());
    for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(element(sums.view(), n), 756);
    column_sums(x.view(), sums.view(), sums.view());
    for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(element(sums.view(), n), 1512);
  });
}

TEST(matmul, nan_and_infinity_reach_exactly_their_row_and_column) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for_each_target([&](const std::string&) {
    for (const double special : {kNan, kInfinity}) {
      constexpr int64_t M = 20, N = 70, K = 9;
      StridedTensor a(DType::f32, {M, K}, Layout::contiguous), b(DType::f32, {K, N}, Layout::contiguous);
      a.fill([&](int64_t n) { return n == 3 * K + 4 ? special : 0; });
      b.fill([&](int64_t n) { return n == 4 * N + 66 ? special : 0; });
      const StridedTensor c(DType::bf16, {M, N}, Layout::contiguous);
      matmul(a.view(), b.view(), c.view(), {.activation = Activation::relu});
      for (int64_t n = 0; n < M * N; ++n) {
        const double value = element(c.view(), n);
        if (n / N == 3 && n % N == 66 && special == kInfinity) {
          EXPECT_EQ(value, kInfinity);  // inf * inf
        } else if (n / N == 3 || n % N == 66) {
          EXPECT_TRUE(std::isnan(value)) << n;  // 0 * NaN and 0 * inf
        } else {
          EXPECT_EQ(value, 0) << n;
        }
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
