// SPDX-License-Identifier: Apache-2.0
//
// Positions against the tables of tests/data/layers.py and against their own identities: a displacement is one fixed
// linear map, inner products depend on the displacement alone.
#include "qkv/positions/positions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "operation.h"
#include "qkv/positions/rotary.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "random_stream.h"
#include "strided.h"

namespace qkv::test {
namespace {

const TensorFile& file() {
  static const TensorFile whole = read_safetensors(QKV_SOURCE_DIR "/tests/data/positions.safetensors");
  return whole;
}

Tensor positions_of(const std::vector<int64_t>& values) {
  Tensor positions(DType::i64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(positions.mutable_view().data()));
  return positions;
}

using Kind = RotaryScaling::Kind;

TEST(rotary, frequencies_of_published_scalings) {
  std::vector<double> factors;
  for (int i = 0; i < 32; ++i) factors.push_back(1 + i / 7.0);
  const std::pair<const char*, RotaryScaling> scalings[] = {
      {"linear", {.kind = Kind::linear, .factor = 4}},
      {"llama3", {.kind = Kind::llama3, .factor = 8, .original_length = 8192}},
      {"yarn", {.kind = Kind::yarn, .factor = 4, .original_length = 4096}},
      {"yarn_mscale",
       {.kind = Kind::yarn,
        .factor = 40,
        .original_length = 4096,
        .beta_fast = 16,
        .beta_slow = 2,
        .mscale = 0.7,
        .mscale_all_dim = 1,
        .truncate = false}},
      {"longrope", {.kind = Kind::longrope, .factor = 8, .original_length = 4096, .factors = factors}}};
  for (const auto& [name, scaling] : scalings) {
    SCOPED_TRACE(name);
    const RotaryOptions options = {.width = 64, .base = 500000, .scaling = scaling};
    const TensorView expected = file().tensors.at(concat("rotary.", name, "/frequencies")).view();
    const std::vector<double> frequencies = rotary_frequencies(options);
    ASSERT_EQ(expected.elements(), static_cast<int64_t>(frequencies.size()));
    for (int64_t i = 0; i < expected.elements(); ++i) {
      // Theirs are f32: a power with a rounded exponent, whose error grows with log(base), and some products.
      const double bound = frequencies[static_cast<size_t>(i)] * (std::log(options.base) + 8) * 0x1p-24;
      EXPECT_NEAR(element(expected, i), frequencies[static_cast<size_t>(i)], bound) << i;
    }
    const double amplitude = element(file().tensors.at(concat("rotary.", name, "/amplitude")).view(), 0);
    EXPECT_NEAR(rotary_amplitude(options), amplitude, amplitude * 0x1p-24);
  }
}

/// One head at each of some positions, rotated; f64.
std::vector<double> rotate(const std::vector<double>& head, int64_t position, const RotaryOptions& options,
                           bool backward = false) {
  const Tensor at = positions_of({position});
  const RotaryTable table = rotary_table(at.view(), options, DType::f64);
  std::vector<double> result = head;
  const MutableTensorView view(result.data(), {1, 1, static_cast<int64_t>(head.size())});
  backward ? rotary_backward(view, table) : rotary_forward(view, table);
  return result;
}

std::vector<double> random_head(int64_t width, uint64_t seed) {
  Stream stream(seed);
  std::vector<double> head;
  for (int64_t i = 0; i < width; ++i) head.push_back(stream.normal());
  return head;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

constexpr RotaryLayout kLayouts[] = {RotaryLayout::half_split, RotaryLayout::interleaved};

TEST(rotary, an_inner_product_depends_on_the_displacement_alone) {
  for (const RotaryLayout layout : kLayouts) {
    const RotaryOptions options = {.width = 16, .layout = layout};
    const std::vector<double> q = random_head(20, 1), k = random_head(20, 2);
    const double expected = product(rotate(q, 37, options), rotate(k, 0, options));
    for (const int64_t begin : {1, 1000, 1 << 20, 1 << 30}) {
      const double moved = product(rotate(q, begin + 37, options), rotate(k, begin, options));
      // A phase near p is known to p epsilon.
      const double bound = (static_cast<double>(begin) + 64) * std::numeric_limits<double>::epsilon() *
                           std::sqrt(product(q, q) * product(k, k));
      EXPECT_NEAR(moved, expected, bound) << begin;
    }
  }
}

TEST(rotary, a_displacement_is_one_linear_map) {
  for (const RotaryLayout layout : kLayouts) {
    const RotaryOptions options = {.width = 16, .layout = layout};
    const std::vector<double> x = random_head(16, 3);
    const double bound = 1000 * std::numeric_limits<double>::epsilon() * std::sqrt(product(x, x));
    for (const int64_t p : {0, 5, 77}) {
      const std::vector<double> once = rotate(x, p + 21, options);
      const std::vector<double> twice = rotate(rotate(x, p, options), 21, options);
      for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(once[i], twice[i], bound);
    }
  }
}

TEST(rotary, backward_undoes_forward_and_keeps_its_amplitude) {
  for (const RotaryLayout layout : kLayouts) {
    const RotaryOptions options = {
        .width = 8, .layout = layout, .scaling = {.kind = Kind::yarn, .factor = 8, .original_length = 32}};
    const double amplitude = rotary_amplitude(options);
    EXPECT_GT(amplitude, 1);
    const std::vector<double> x = random_head(11, 4);
    const std::vector<double> back = rotate(rotate(x, 123, options), 123, options, true);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(back[i], x[i] * (i < 8 ? amplitude * amplitude : 1), 16 * std::numeric_limits<double>::epsilon() * 4);
    }
  }
}

TEST(rotary, every_dtype_layout_and_instruction_set_agrees_with_the_formula) {
  for_each_target([](const std::string&) {
    for (const RotaryLayout layout : kLayouts) {
      for (const int64_t width : {2, 32, 34, 128}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
          for (const Layout memory : {Layout::contiguous, Layout::padded, Layout::strided, Layout::token_major}) {
            const int64_t D = width + 5, N = 3, H = 2;
            StridedTensor x(dtype, {N, H, D}, memory);
            Stream stream(9);
            x.fill([&](int64_t) { return stream.normal(); });
            const std::vector<double> before = elements(x.view());
            const std::vector<int64_t> at = {0, 5, 999};
            const Tensor positions = positions_of(at);
            const RotaryOptions options = {.width = width, .layout = layout};
            rotary_forward(x.view(),
                           rotary_table(positions.view(), options, dtype == DType::f64 ? DType::f64 : DType::f32));
            const std::vector<double> frequencies = rotary_frequencies(options);
            const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
            const double store = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
            for (int64_t n = 0; n < N * H * D; ++n) {
              const int64_t i = n % D;
              double expected = before[static_cast<size_t>(n)], magnitude = 0;
              if (i < width) {
                const bool is_half = layout == RotaryLayout::half_split;
                const int64_t pair = is_half ? i % (width / 2) : i / 2;
                const bool is_first = is_half ? i < width / 2 : i % 2 == 0;
                const int64_t step = (is_half ? width / 2 : 1) * (is_first ? 1 : -1);
                const double phase =
                    static_cast<double>(at[static_cast<size_t>(n / (H * D))]) * frequencies[static_cast<size_t>(pair)];
                const double other = before[static_cast<size_t>(n + step)];
                magnitude = std::fabs(expected) + std::fabs(other);
                expected = expected * std::cos(phase) + (is_first ? -1 : 1) * other * std::sin(phase);
              }
              ASSERT_NEAR(element(x.view(), n), expected,
                          4 * unit * magnitude + store * (std::fabs(expected) + 4 * unit * magnitude))
                  << n;
            }
            EXPECT_TRUE(x.padding_intact());
          }
        }
      }
    }
  });
}

TEST(rotary, threads_change_no_bit) {
  Tensor one(DType::f32, {3000, 4, 16});
  Stream stream(1);
  for (int64_t n = 0; n < one.view().elements(); ++n)
    *static_cast<float*>(one.mutable_view().at(n)) = static_cast<float>(stream.normal());
  Tensor three = converted(one.view(), DType::f32);
  std::vector<int64_t> at(3000);
  for (size_t n = 0; n < at.size(); ++n) at[n] = static_cast<int64_t>(n);
  const Tensor positions = positions_of(at);
  const RotaryTable table = rotary_table(positions.view(), {.width = 16});
  rotary_forward(one.mutable_view(), table, 1);
  rotary_forward(three.mutable_view(), table, 3);
  EXPECT_EQ(elements(one.view()), elements(three.view()));
}

TEST(sinusoidal, tables_of_published_models) {
  for (const bool halves : {false, true}) {
    const TensorView expected = file().tensors.at(halves ? "sinusoidal.halves" : "sinusoidal.interleaved").view();
    std::vector<int64_t> at;
    for (int64_t n = 0; n < expected.size(0); ++n) at.push_back(n);
    const Tensor positions = positions_of(at);
    const StridedTensor y(DType::f64, expected.shape(), Layout::strided);
    sinusoidal_positions(positions.view(), {.halves = halves}, y.view());
    for (int64_t n = 0; n < expected.elements(); ++n) {
      // Marian's table is f32; phases up to 9 are known to some epsilons.
      EXPECT_NEAR(element(y.view(), n), element(expected, n),
                  halves ? 0x1p-24 : 16 * std::numeric_limits<double>::epsilon())
          << n;
    }
  }
}

TEST(sinusoidal, a_displacement_is_one_linear_map) {
  const Tensor positions = positions_of({3, 14, 3 + 1000, 14 + 1000});
  Tensor y(DType::f64, {4, 8});
  sinusoidal_positions(positions.view(), {}, y.mutable_view());
  for (int64_t i = 0; i < 8; i += 2) {
    const double phase = 11 * std::pow(10000.0, -static_cast<double>(i) / 8);
    for (const int64_t row : {0, 2}) {
      const double sine = element(y.view(), row * 8 + i), cosine = element(y.view(), row * 8 + i + 1);
      const double bound = 4096 * std::numeric_limits<double>::epsilon();
      EXPECT_NEAR(element(y.view(), (row + 1) * 8 + i), sine * std::cos(phase) + cosine * std::sin(phase), bound);
      EXPECT_NEAR(element(y.view(), (row + 1) * 8 + i + 1), cosine * std::cos(phase) - sine * std::sin(phase), bound);
    }
  }
}

TEST(alibi, slopes_of_any_number_of_heads) {
  for (const int64_t heads : {1, 2, 3, 6, 8, 12, 20, 32}) {
    const TensorView expected = file().tensors.at(concat("alibi.", heads)).view();
    const std::vector<double> slopes = alibi_slopes(heads);
    ASSERT_EQ(static_cast<int64_t>(slopes.size()), heads);
    for (int64_t h = 0; h < heads; ++h) {
      // Theirs are powers by an f32 exponent of up to 8 heads.
      EXPECT_NEAR(element(expected, h), slopes[static_cast<size_t>(h)], 64 * 0x1p-24 * slopes[static_cast<size_t>(h)]);
    }
  }
  EXPECT_TRUE(alibi_slopes(0).empty());
}

void expect_refusal(const char* expected, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << expected;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(positions, refusals_name_what_is_wrong) {
  const Tensor positions = positions_of({0, int64_t{1} << 32});
  const Tensor three = positions_of({0, 1, 2});
  Tensor x(DType::f32, {3, 2, 8});
  const RotaryTable table = rotary_table(three.view(), {.width = 8});
  expect_refusal("position 4294967296 at 1 is beyond 2^31", [&] { rotary_table(positions.view(), {.width = 8}); });
  expect_refusal("rotary: width should be even, got 7", [&] { rotary_frequencies({.width = 7}); });
  expect_refusal("rotary: longrope needs 4 factors for width 8, got 0",
                 [&] { rotary_frequencies({.width = 8, .scaling = {.kind = Kind::longrope}}); });
  expect_refusal("rotary: original_length should be a positive number",
                 [&] { rotary_frequencies({.width = 8, .scaling = {.kind = Kind::yarn, .factor = 2}}); });
  Tensor two(DType::f32, {2, 2, 8});
  expect_refusal("rotary: x has 2 rows, the table is [3, 4]", [&] { rotary_forward(two.mutable_view(), table); });
  Tensor narrow(DType::f32, {3, 2, 6});
  expect_refusal("rotary: heads have width 6, the table rotates 8",
                 [&] { rotary_forward(narrow.mutable_view(), table); });
  Tensor wide(DType::f64, {3, 2, 8});
  expect_refusal("rotary: the table is f32, x is f64", [&] { rotary_forward(wide.mutable_view(), table); });
  expect_refusal("sinusoidal: y has 3 rows, positions have 2", [&] {
    Tensor y(DType::f32, {3, 4});
    const Tensor at = positions_of({0, 1});
    sinusoidal_positions(at.view(), {}, y.mutable_view());
  });
}

}  // namespace
}  // namespace qkv::test
