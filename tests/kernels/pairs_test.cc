// SPDX-License-Identifier: Apache-2.0
//
// bf16 in pairs, on instruction sets that have the dot product: packed forms, and products against f64.
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

template <class F>
void for_each_pair_target(F body) {
  for_each_target([&](const std::string&) {
    if (kernels().bf16 != nullptr) body(*kernels().bf16);
  });
}

StoredRows rows_of(const TensorView& view) {
  return {view.data(), view.dtype(), view.stride(0), view.stride(1), view.size(0), view.size(1)};
}

float half(BFloat16Pair pair, int64_t which) {
  return to_float(BFloat16{static_cast<uint16_t>(pair.bits >> (16 * which))});
}

/// [rows, columns] of bf16 in any layout.
StridedTensor random_rows(int64_t rows, int64_t columns, Layout layout, uint64_t seed) {
  StridedTensor tensor(DType::bf16, Dims{rows, columns}, layout);
  Stream stream(seed);
  tensor.fill([&](int64_t) { return stream.normal() * std::exp2(static_cast<double>(stream.integer(-10, 10))); });
  return tensor;
}

/// Element (r, c), 0 outside.
double at(const StridedTensor& tensor, int64_t r, int64_t c) {
  const TensorView view = tensor.view();
  return r < view.size(0) && c < view.size(1) ? element(view, r * view.size(1) + c) : 0;
}

void expect_packed(const PairKernels& set, Layout layout, int64_t rows, int64_t columns) {
  const StridedTensor source = random_rows(rows, columns, layout, static_cast<uint64_t>(rows * 1000 + columns));
  const int64_t pairs = (columns + 1) / 2;
  const int64_t W = kernels().f32->panel_width;
  const int64_t padded_rows = (rows + W - 1) / W * W;
  const int64_t stride = (columns + 15) / 16 * 16;
  const BFloat16Pair poison{0x7FC07FC0};
  std::vector<BFloat16Pair> broadcast(static_cast<size_t>(rows * (pairs + 3)), poison);
  std::vector<BFloat16Pair> panels(static_cast<size_t>(padded_rows * pairs), poison);
  std::vector<BFloat16Pair> streamed(static_cast<size_t>((rows + 1) / 2 * stride), poison);
  std::vector<int64_t> found(static_cast<size_t>(rows));
  set.pack_pair_rows(rows_of(source.view()), broadcast.data(), pairs + 3);
  set.pack_pair_panels(rows_of(source.view()), panels.data());
  ASSERT_EQ(set.pack_row_pairs(rows_of(source.view()), streamed.data(), stride, found.data()), 0);
  const int64_t N = kernels().f32->lanes;
  for (int64_t r = 0; r < (rows + N - 1) / N * N; ++r) {
    for (int64_t c = 0; c < 2 * pairs; ++c) {
      const auto panel = static_cast<size_t>((r / W * pairs + c / 2) * W + r % W);
      ASSERT_EQ(half(panels[panel], c % 2), at(source, r, c)) << r << " " << c;
    }
    for (int64_t c = 0; r < rows && c < 2 * (pairs + 3); ++c) {
      ASSERT_EQ(half(broadcast[static_cast<size_t>(r * (pairs + 3) + c / 2)], c % 2), at(source, r, c));
    }
    for (int64_t c = 0; r < (rows + 1) / 2 * 2 && c < stride; ++c) {
      ASSERT_EQ(half(streamed[static_cast<size_t>(r / 2 * stride + c)], r % 2), at(source, r, c));
    }
  }
}

TEST(pairs, packed_forms_of_every_layout) {
  for_each_pair_target([](const PairKernels& set) {
    for (const Layout layout :
         {Layout::contiguous, Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
      for (const int64_t rows : {1, 15, 64, 65, 130}) {
        for (const int64_t columns : {1, 16, 63, 64, 67, 150}) expect_packed(set, layout, rows, columns);
      }
    }
  });
}

TEST(pairs, what_products_cannot_take_is_left_out_of_streamed_rows_and_listed) {
  for_each_pair_target([](const PairKernels& set) {
    std::vector<BFloat16> source(7 * 20, to_bfloat16(1.5F));
    const float infinity = std::numeric_limits<float>::infinity();
    source[0 * 20 + 19] = to_bfloat16(infinity);
    source[1 * 20 + 1] = to_bfloat16(std::numeric_limits<float>::quiet_NaN());
    source[3 * 20 + 4] = BFloat16{0x8001};  // subnormal
    source[4 * 20 + 5] = to_bfloat16(-0x1.02p64F);
    source[6 * 20 + 2] = to_bfloat16(0x1.FEp-65F);
    source[5 * 20 + 3] = to_bfloat16(-0.0F);
    source[5 * 20 + 4] = to_bfloat16(0x1p64F);
    source[5 * 20 + 5] = to_bfloat16(-0x1p-64F);
    std::vector<BFloat16Pair> packed(4 * 32);
    std::vector<int64_t> found(7, -1);
    ASSERT_EQ(set.pack_row_pairs(rows_of(TensorView(source.data(), Dims{7, 20})), packed.data(), 32, found.data()), 5);
    EXPECT_EQ(found, (std::vector<int64_t>{0, 1, 3, 4, 6, -1, -1}));
    for (int64_t r = 0; r < 7; ++r) {
      for (int64_t c = 0; c < 20; ++c) {
        const float stored = to_float(source[static_cast<size_t>(r * 20 + c)]);
        const float magnitude = std::fabs(stored);
        const bool kept = magnitude >= kSmallestPaired && magnitude <= kLargestPaired;
        EXPECT_EQ(half(packed[static_cast<size_t>(r / 2 * 32 + c)], r % 2), kept ? stored : 0) << r << " " << c;
      }
    }
  });
}

/// q k^T, with every row and column tail: each sum within (terms + 2) units in the last place of the sum of its terms'
/// magnitudes, which no order of f32 additions exceeds.
void expect_products(const PairKernels& set, int64_t rows, int64_t keys, int64_t D) {
  const StridedTensor q = random_rows(rows, D, Layout::contiguous, 1);
  const StridedTensor k = random_rows(keys, D, Layout::contiguous, 2);
  const int64_t pairs = (D + 1) / 2;
  const int64_t W = kernels().f32->panel_width;
  const int64_t stride = (keys + W - 1) / W * W;
  std::vector<BFloat16Pair> packed_q(static_cast<size_t>(rows * pairs));
  std::vector<BFloat16Pair> packed_k(static_cast<size_t>(stride * pairs));
  std::vector<float> scores(static_cast<size_t>(rows * stride));
  set.pack_pair_rows(rows_of(q.view()), packed_q.data(), pairs);
  set.pack_pair_panels(rows_of(k.view()), packed_k.data());
  set.raw_scores({.q = packed_q.data(),
                  .q_stride = pairs,
                  .keys = packed_k.data(),
                  .rows = rows,
                  .D = pairs,
                  .begin = 0,
                  .end = keys,
                  .scale = 1,
                  .softcap = 0,
                  .finished = false,
                  .terms = nullptr,
                  .terms_stride = 0,
                  .shared_begin = 0,
                  .shared_end = 0,
                  .scores = scores.data(),
                  .scores_stride = stride});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < keys; ++j) {
      double expected = 0;
      double magnitude = 0;
      for (int64_t c = 0; c < D; ++c) {
        expected += at(q, r, c) * at(k, j, c);
        magnitude += std::fabs(at(q, r, c) * at(k, j, c));
      }
      const double bound = static_cast<double>(D + 2) * 0x1p-24 * magnitude;
      ASSERT_NEAR(static_cast<double>(scores[static_cast<size_t>(r * stride + j)]), expected, bound) << r << " " << j;
    }
  }
}

TEST(pairs, products_agree_with_f64) {
  for_each_pair_target([](const PairKernels& set) {
    for (const int64_t rows : {1, 2, 3, 5, 6, 7, 13}) {
      for (const int64_t keys : {1, 16, 17, 63, 64, 65}) {
        for (const int64_t D : {1, 2, 31, 64, 80}) expect_products(set, rows, keys, D);
      }
    }
  });
}

}  // namespace
}  // namespace qkv::test
