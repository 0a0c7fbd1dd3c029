// SPDX-License-Identifier: Apache-2.0
//
// Packing on every instruction set: any dtype and strides, zeros in the padding, NaN and infinities taken out and
// listed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_kernels.h"
#include "operation.h"
#include "random_stream.h"
#include "strided.h"

namespace qkv::test {
namespace {

StoredRows rows_of(const TensorView& view) {
  return {view.data(), view.dtype(), view.stride(0), view.stride(1), view.size(0), view.size(1)};
}

template <class T>
void expect_packed(DType dtype, Layout layout, int64_t rows, int64_t columns) {
  const AttentionKernels<T>& set = kernels().attention<T>();
  StridedTensor source(dtype, Dims{rows, columns}, layout);
  Stream stream(static_cast<uint64_t>(rows * 1000 + columns));
  source.fill([&](int64_t) { return stream.normal() * std::exp2(static_cast<double>(stream.integer(-20, 10))); });
  const int64_t stride = columns + 5;
  std::vector<T> packed(static_cast<size_t>(rows * stride), T{7});
  EXPECT_EQ(set.pack_rows(rows_of(source.view()), packed.data(), stride, nullptr), 0);
  const int64_t W = set.panel_width;
  const int64_t panels = (rows + W - 1) / W;
  std::vector<T> panel(static_cast<size_t>(panels * W * columns), T{7});
  set.pack_panels(rows_of(source.view()), panel.data());
  for (int64_t r = 0; r < (rows + set.lanes - 1) / set.lanes * set.lanes; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double expected = r < rows ? element(source.view(), r * columns + c) : 0;
      const int64_t at = (r / W * columns + c) * W + r % W;
      ASSERT_EQ(static_cast<double>(panel[static_cast<size_t>(at)]), expected) << r << " " << c;
      if (r >= rows) continue;
      ASSERT_EQ(static_cast<double>(packed[static_cast<size_t>(r * stride + c)]), expected);
    }
    for (int64_t c = columns; r < rows && c < stride; ++c) {
      ASSERT_EQ(packed[static_cast<size_t>(r * stride + c)], T{0});
    }
  }
}

TEST(pack, rows_and_panels_of_every_dtype_and_layout) {
  for_each_target([](const std::string&) {
    for (const Layout layout :
         {Layout::contiguous, Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
      for (const int64_t rows : {1, 15, 64, 65, 130}) {
        for (const int64_t columns : {1, 16, 63, 64, 67}) {
          expect_packed<float>(DType::f32, layout, rows, columns);
          expect_packed<float>(DType::bf16, layout, rows, columns);
          expect_packed<float>(DType::f16, layout, rows, columns);
          expect_packed<double>(DType::f64, layout, rows, columns);
        }
      }
    }
  });
}

TEST(pack, every_f16_number_widens_exactly) {
  std::vector<Float16> all(65'536);
  for (uint32_t bits = 0; bits < 65'536; ++bits) all[bits].bits = static_cast<uint16_t>(bits);
  const StoredRows rows = rows_of(TensorView(all.data(), Dims{512, 128}));
  for_each_target([&](const std::string&) {
    std::vector<float> wide(65'536);
    kernels().f32->pack_rows(rows, wide.data(), 128, nullptr);
    for (uint32_t bits = 0; bits < 65'536; ++bits) {
      const float expected = to_float(all[bits]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << bits;
      } else {
        ASSERT_EQ(wide[bits], expected) << bits;
        ASSERT_EQ(std::signbit(wide[bits]), std::signbit(expected)) << bits;
      }
    }
  });
}

TEST(pack, nan_and_infinity_become_zero_and_their_rows_are_listed) {
  std::vector<float> source(20 * 30, 1.5F);
  source[3 * 30 + 29] = std::numeric_limits<float>::infinity();
  source[3 * 30 + 1] = std::numeric_limits<float>::quiet_NaN();
  source[19 * 30] = -std::numeric_limits<float>::infinity();
  for_each_target([&](const std::string&) {
    std::vector<float> packed(20 * 32);
    std::vector<int64_t> found(20, -1);
    ASSERT_EQ(
        kernels().f32->pack_rows(rows_of(TensorView(source.data(), Dims{20, 30})), packed.data(), 32, found.data()), 2);
    EXPECT_EQ(found[0], 3);
    EXPECT_EQ(found[1], 19);
    EXPECT_EQ(packed[3 * 32 + 29], 0);
    EXPECT_EQ(packed[3 * 32 + 1], 0);
    EXPECT_EQ(packed[19 * 32], 0);
    EXPECT_EQ(packed[3 * 32 + 2], 1.5F);
  });
}

}  // namespace
}  // namespace qkv::test
