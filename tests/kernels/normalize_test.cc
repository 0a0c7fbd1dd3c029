// SPDX-License-Identifier: Apache-2.0
//
// Normalisation and its gradients on every instruction set against the formula in long double: sizes around lanes,
// dtypes, layouts, rows with a large mean and a tiny variance, and bits that know only their row.
#include "qkv/kernels/normalize.h"

#include "matmul_problem.h"
#include "operation.h"

namespace qkv::test {
namespace {

constexpr int64_t kWidths[] = {1, 3, 15, 16, 17, 63, 64, 65, 200, 1030};

/// A row in long double, of a layer norm relative to its first element: such differences are exact where a mean is not.
struct RowMoments {
  std::vector<long double> row;
  long double mean = 0, inverse = 0, largest_deviation = 0;
  long double deviation(int64_t c) const { return row[static_cast<size_t>(c)] - mean; }
};

RowMoments moments(const std::vector<double>& row, const NormalizeOptions& options) {
  RowMoments m;
  const auto count = static_cast<long double>(row.size());
  const bool is_layer = options.kind == NormKind::layer;
  for (const double x : row) m.row.push_back(static_cast<long double>(x) - (is_layer ? row[0] : 0));
  for (const long double x : m.row) m.mean += is_layer ? x / count : 0;
  long double squares = 0;
  for (const long double x : m.row) {
    squares += (x - m.mean) * (x - m.mean) / count;
    m.largest_deviation = std::max(m.largest_deviation, std::fabs(x - m.mean));
  }
  m.inverse = 1 / std::sqrt(squares + static_cast<long double>(options.epsilon));
  return m;
}

std::vector<double> row_of(const TensorView& x, int64_t r) {
  std::vector<double> row;
  const int64_t width = x.size(x.rank() - 1);
  for (int64_t c = 0; c < width; ++c) row.push_back(element(x, r * width + c));
  return row;
}

/// Units of roundoff by which xhat may be off relative to the largest |xhat| of its row: two roundings of a deviation,
/// half of a sum of squares of `width` terms in 4 vectors of lanes, quotient, root and product.
double roundings_of_row(int64_t width) { return static_cast<double>(width) / 8 + 16; }

void expect_normalized(const TensorView& x, const TensorView& weight, const TensorView& bias, const TensorView& y,
                       const NormalizeOptions& options) {
  const int64_t width = x.size(x.rank() - 1), rows = x.elements() / std::max<int64_t>(1, width);
  const double unit = unit_roundoff(compute_type(x.dtype()));
  for (int64_t r = 0; r < rows; ++r) {
    const RowMoments m = moments(row_of(x, r), options);
    for (int64_t c = 0; c < width; ++c) {
      const long double w = weight ? static_cast<long double>(options.weight_offset) + element(weight, c) : 1.0L;
      const long double b = bias ? element(bias, c) : 0.0;
      const long double residual = options.residual ? element(options.residual, r * width + c) : 0.0;
      const long double scaled = m.deviation(c) * m.inverse * w;
      const long double expected = scaled + b + residual;
      const long double bound =
          unit * roundings_of_row(width) *
              (m.largest_deviation * m.inverse * std::fabs(w) + std::fabs(b) + std::fabs(residual)) +
          (y.dtype() == compute_type(y.dtype()) ? 0 : unit_roundoff(y.dtype()) * std::fabs(expected) + 0x1p-25L);
      ASSERT_LE(std::fabs(element(y, r * width + c) - expected), bound) << "row " << r << " column " << c;
    }
  }
}

void expect_case(DType dtype, const Dims& shape, Layout layout, NormKind kind, double offset) {
  SCOPED_TRACE(concat(name(dtype), " ", shape, " ", name(layout), " kind ", static_cast<int>(kind)));
  const int64_t width = shape[shape.rank() - 1];
  const StridedTensor x = random_matrix(dtype, shape, layout, 1), residual = random_matrix(dtype, shape, layout, 2);
  const StridedTensor weight = random_matrix(dtype, {width}, Layout::strided, 3);
  const StridedTensor bias = random_matrix(dtype, {width}, Layout::contiguous, 4);
  const StridedTensor y(dtype, shape, layout);
  NormalizeOptions options = {.kind = kind, .epsilon = 1e-5, .weight_offset = offset};
  normalize(x.view(), weight.view(), bias.view(), y.view(), options);
  expect_normalized(x.view(), weight.view(), bias.view(), y.view(), options);
  EXPECT_TRUE(y.padding_intact());
  options.residual = residual.view();
  normalize(x.view(), {}, {}, y.view(), options);
  expect_normalized(x.view(), {}, {}, y.view(), options);
}

TEST(normalize, widths_dtypes_and_kinds) {
  for_each_target([](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const int64_t width : kWidths) {
        expect_case(dtype, {3, width}, Layout::contiguous, NormKind::layer, 0);
        expect_case(dtype, {3, width}, Layout::padded, NormKind::rms, 1);
      }
    }
  });
}

TEST(normalize, layouts_and_axes) {
  for_each_target([](const std::string&) {
    for (const Layout layout : {Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
      expect_case(DType::f32, {70, 33}, layout, NormKind::layer, 0);
      expect_case(DType::bf16, {5, 7, 33}, layout, NormKind::rms, 0);
    }
    expect_case(DType::f32, {5, 7, 33}, Layout::token_major, NormKind::layer, 0);
    expect_case(DType::f32, {33}, Layout::contiguous, NormKind::layer, 0);
    expect_case(DType::f32, {0, 33}, Layout::contiguous, NormKind::layer, 0);
    expect_case(DType::f32, {4, 0}, Layout::contiguous, NormKind::layer, 0);
  });
}

TEST(normalize, a_large_mean_costs_a_tiny_variance_nothing) {
  for_each_target([](const std::string&) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const double mean : {1e3, -1e4}) {
        constexpr int64_t kWidth = 768;
        StridedTensor x(dtype, {8, kWidth}, Layout::contiguous);
        Stream stream(5);
        const double spread = mean * (dtype == DType::f64 ? 1e-12 : 1e-5);
        x.fill([&](int64_t) { return mean + spread * stream.normal(); });
        const StridedTensor y(dtype, {8, kWidth}, Layout::contiguous);
        const NormalizeOptions options = {.epsilon = 0};
        normalize(x.view(), {}, {}, y.view(), options);
        expect_normalized(x.view(), {}, {}, y.view(), options);
      }
    }
  });
}

TEST(normalize, gradients_keep_the_accuracy_of_deviations) {
  for_each_target([](const std::string&) {
    for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
      constexpr int64_t kRows = 3, kWidth = 301;
      StridedTensor x(DType::f32, {kRows, kWidth}, Layout::contiguous);
      Stream stream(6);
      x.fill([&](int64_t) { return (kind == NormKind::layer ? 100 : 0) + stream.normal(); });
      const StridedTensor weight = random_matrix(DType::f32, {kWidth}, Layout::contiguous, 7);
      const StridedTensor d_y = random_matrix(DType::f32, {kRows, kWidth}, Layout::contiguous, 8);
      const StridedTensor y(DType::f32, {kRows, kWidth}, Layout::contiguous);
      const StridedTensor d_x(DType::f32, {kRows, kWidth}, Layout::contiguous);
      const NormalizeOptions options = {.kind = kind};
      NormalizeState state;
      normalize(x.view(), weight.view(), {}, y.view(), options, &state);
      normalize_backward(x.view(), weight.view(), state, d_y.view(), options, {.x = d_x.view()});
      for (int64_t r = 0; r < kRows; ++r) {
        const RowMoments m = moments(row_of(x.view(), r), options);
        long double mean_g = 0, mean_product = 0, magnitude = 0;
        const auto g = [&](int64_t c) {
          return static_cast<long double>(element(d_y.view(), r * kWidth + c)) * element(weight.view(), c);
        };
        const auto xhat = [&](int64_t c) { return m.deviation(c) * m.inverse; };
        for (int64_t c = 0; c < kWidth; ++c) {
          mean_g += kind == NormKind::layer ? g(c) / kWidth : 0;
          mean_product += g(c) * xhat(c) / kWidth;
          magnitude = std::max(magnitude, std::fabs(g(c)));
        }
        const long double bound = 0x1p-24L * roundings_of_row(kWidth) * m.inverse * magnitude *
                                  (2 + m.largest_deviation * m.inverse * m.largest_deviation * m.inverse);
        for (int64_t c = 0; c < kWidth; ++c) {
          const long double expected = m.inverse * (g(c) - mean_g - xhat(c) * mean_product);
          ASSERT_LE(std::fabs(element(d_x.view(), r * kWidth + c) - expected), bound) << r << " " << c;
        }
      }
    }
  });
}

TEST(normalize, bits_of_a_row_know_only_the_row) {
  for_each_target([](const std::string&) {
    for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
      constexpr int64_t kRows = 400, kWidth = 261;
      const StridedTensor x = random_matrix(DType::f32, {kRows, kWidth}, Layout::contiguous, 1);
      const StridedTensor d_y = random_matrix(DType::f32, {kRows, kWidth}, Layout::contiguous, 2);
      const StridedTensor weight = random_matrix(DType::f32, {kWidth}, Layout::contiguous, 3);
      std::vector<char> values, gradients;
      for (const int threads : {1, 3}) {
        const NormalizeOptions options = {.kind = kind, .threads = threads};
        const StridedTensor y(DType::f32, {kRows, kWidth}, Layout::strided);
        StridedTensor d_x(DType::f32, {kRows, kWidth}, Layout::contiguous);
        StridedTensor d_weight(DType::f32, {kWidth}, Layout::contiguous);
        StridedTensor d_bias(DType::f32, {kWidth}, Layout::contiguous);
        d_weight.fill([](int64_t) { return 0; });
        d_bias.fill([](int64_t) { return 0; });
        NormalizeState state;
        normalize(x.view(), weight.view(), {}, y.view(), options, &state);
        normalize_backward(x.view(), weight.view(), state, d_y.view(), options,
                           {.x = d_x.view(), .weight = d_weight.view(), .bias = d_bias.view()});
        std::vector<char> all = bits_of(d_x.view());
        for (const StridedTensor* sum : {&d_weight, &d_bias}) {
          const std::vector<char> bits = bits_of(sum->view());
          all.insert(all.end(), bits.begin(), bits.end());
        }
        if (threads == 1) {
          values = bits_of(y.view());
          gradients = all;
        }
        EXPECT_EQ(values, bits_of(y.view()));
        EXPECT_EQ(gradients, all);
      }
      const StridedTensor alone(DType::f32, {1, kWidth}, Layout::contiguous);
      const TensorView row(DType::f32, x.view().at(177 * kWidth), {1, kWidth});
      normalize(row, weight.view(), {}, alone.view(), {.kind = kind});
      EXPECT_EQ(std::memcmp(alone.view().data(), values.data() + 177 * kWidth * 4, kWidth * 4), 0);
    }
  });
}

TEST(normalize, a_nan_stays_in_its_row) {
  StridedTensor x = random_matrix(DType::f32, {3, 20}, Layout::contiguous, 1);
  *static_cast<float*>(x.view().at(25)) = std::numeric_limits<float>::quiet_NaN();
  const StridedTensor y(DType::f32, {3, 20}, Layout::contiguous);
  normalize(x.view(), {}, {}, y.view());
  for (int64_t n = 0; n < 60; ++n) EXPECT_EQ(std::isnan(element(y.view(), n)), n / 20 == 1) << n;
}

void expect_refusal(const char* expected, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << expected;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(normalize, refusals_name_the_operand) {
  const StridedTensor x = random_matrix(DType::f32, {3, 20}, Layout::contiguous, 1);
  const StridedTensor wide = random_matrix(DType::f64, {20}, Layout::contiguous, 1);
  const StridedTensor narrow = random_matrix(DType::f32, {19}, Layout::contiguous, 1);
  const StridedTensor y(DType::f32, {3, 20}, Layout::contiguous);
  expect_refusal("normalize: weight should be [20], got [19]",
                 [&] { normalize(x.view(), narrow.view(), {}, y.view()); });
  expect_refusal("normalize: bias is f64, x is f32", [&] { normalize(x.view(), {}, wide.view(), y.view()); });
  expect_refusal("normalize: epsilon should be", [&] { normalize(x.view(), {}, {}, y.view(), {.epsilon = -1}); });
  expect_refusal("normalize: y is needed", [&] { normalize(x.view(), {}, {}, {}); });
  const MutableTensorView shifted(DType::f32, x.view().at(1), {2, 20});
  const TensorView two(DType::f32, x.view().data(), {2, 20});
  expect_refusal("normalize: y overlaps an input without being it", [&] { normalize(two, {}, {}, shifted); });
  expect_refusal("normalize_backward: the state is not that",
                 [&] { normalize_backward(x.view(), {}, {}, x.view(), {}, {.x = y.view()}); });
}

}  // namespace
}  // namespace qkv::test
