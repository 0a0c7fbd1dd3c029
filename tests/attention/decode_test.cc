// SPDX-License-Identifier: Apache-2.0
//
// Few queries go another way than many (src/attention/decode.cc): keys as they are stored, work cut by key blocks. A
// row must not know.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "operation.h"
#include "slices.h"

namespace qkv::test {
namespace {

/// Rows of both results that begin at `begin` of `all`, to the bit.
void expect_rows(const AttentionReference& all, const AttentionReference& part, int64_t begin) {
  const auto same = [&](const Tensor& whole_tensor, const Tensor& alone) {
    const TensorView rows = slice(whole_tensor.view(), 2, begin, begin + alone.shape()[2]);
    ASSERT_EQ(rows.shape(), alone.shape());
    for (int64_t n = 0; n < rows.elements(); ++n) {
      const auto bytes = static_cast<size_t>(size_of(alone.dtype()));
      ASSERT_EQ(std::memcmp(element_address(rows, n), element_address(alone.view(), n), bytes), 0)
          << "row " << begin << " element " << n << ": " << element(rows, n) << " among many, "
          << element(alone.view(), n) << " alone";
    }
  };
  same(all.out, part.out);
  same(all.lse, part.lse);
}

/// 212 queries of four heads on one are more than one packing of a key block serves (decode.cc): they go as items of
/// rows. The last key block is not full, and neither width fills vectors.
Spec many_rows(DType dtype) {
  return {.seed = 11, .dtype = dtype, .H = 4, .Hkv = 1, .Tq = 212, .Tk = 1091, .D = 40, .Dv = 37};
}

/// One row, a few (the most that read stored keys together), and so many that they share packed blocks.
void expect_chunks(const TestProblem& problem) {
  SCOPED_TRACE(name(problem.spec));
  const AttentionReference all = run_operation(problem, {.backward = false});
  const int64_t Tq = problem.spec.Tq;
  const int64_t side = problem.options.block_mask ? problem.options.block.queries : 1;
  const std::pair<int64_t, int64_t> chunks[] = {{0, 1}, {Tq - 1, 1}, {Tq / 2, 1}, {Tq / 3, 4}, {Tq / 4, 7}, {60, 75}};
  for (const auto& [wanted, rows] : chunks) {
    const int64_t begin = wanted / side * side;
    const Call chunk = query_chunk(problem, begin, std::min(Tq, begin + rows));
    for (const int threads : {1, 3})
      expect_rows(all, run_operation(chunk, {.threads = threads, .backward = false}), begin);
  }
}

class DecodeBits : public testing::TestWithParam<DType> {};

TEST_P(DecodeBits, are_those_of_the_row_among_many) {
  for_each_target([&](const std::string&) {
    for (const Spec& spec : each_feature_alone(many_rows(GetParam()))) {
      if ((spec.features & (kPacked | kDLse)) == 0) expect_chunks(TestProblem(spec));
    }
  });
}

TEST_P(DecodeBits, do_not_depend_on_the_layout_of_keys_and_values) {
  for (const Layout layout : {Layout::token_major, Layout::reversed, Layout::padded, Layout::strided}) {
    Spec spec = many_rows(GetParam());
    spec.layout = layout;
    spec.features = kCausalBottomRight | kBias | kSlopes | kSinks | kSoftcap;
    expect_chunks(TestProblem(spec));
  }
}

TEST_P(DecodeBits, do_not_depend_on_widths) {
  for (const int64_t D : {0, 1, 8, 15, 16, 17, 33, 64, 130}) {
    Spec spec = many_rows(GetParam());
    spec.D = D;
    spec.Dv = D == 0 ? 1 : 2 * D - 1;
    expect_chunks(TestProblem(spec));
  }
}

TEST_P(DecodeBits, of_hidden_nan_are_those_without) {
  Spec spec = many_rows(GetParam());
  spec.features = kCausalBottomRight | kWindow | kMask | kKeyLengths;
  TestProblem problem(spec);
  const AttentionReference before = run_operation(problem, {.backward = false});
  ASSERT_GT(problem.poison_hidden(), 0);
  EXPECT_EQ(different_bits(before, run_operation(problem, {.backward = false})), "");
  expect_chunks(problem);
}

INSTANTIATE_TEST_SUITE_P(dtypes, DecodeBits, testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(decode, visible_infinity_reaches_its_rows_alone) {
  Spec spec = many_rows(DType::f32);
  spec.features = kCausalBottomRight;
  const TestProblem problem(spec);
  const int64_t key = 1000;  // seen by the last queries only
  auto* value = static_cast<float*>(const_cast<void*>(element_address(problem.v, key * spec.Dv + 5)));
  *value = std::numeric_limits<float>::infinity();
  expect_chunks(problem);
  const AttentionReference last = run_operation(query_chunk(problem, spec.Tq - 1, spec.Tq), {.backward = false});
  EXPECT_EQ(element(last.out.view(), 5), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(element(last.out.view(), 4)));
}

/// Pairs of bf16 leave such values out and add their share by itself: among few rows as among many.
TEST(decode, values_beyond_what_pairs_hold) {
  for (const float value : {0x1p100F, 0x1p-80F, 0x1p-130F, -0x1.FEp127F}) {
    Spec spec = many_rows(DType::bf16);
    spec.features = kCausalBottomRight;
    const TestProblem problem(spec);
    for (const auto& [key, column] : {std::pair<int64_t, int64_t>{0, 5}, {513, 36}, {700, 0}}) {
      auto* at = static_cast<BFloat16*>(const_cast<void*>(element_address(problem.v, key * spec.Dv + column)));
      *at = to_bfloat16(value);
    }
    expect_chunks(problem);
  }
}

TEST(decode, key_blocks_on_many_threads) {
  for (const int64_t Tq : {1, 3, 24}) {
    const TestProblem problem({.seed = 3,
                               .H = 4,
                               .Hkv = 2,
                               .Tq = Tq,
                               .Tk = 20'000,
                               .D = 64,
                               .Dv = 48,
                               .features = kCausalBottomRight | kSinks | kDropout});
    const AttentionReference one = run_operation(problem, {.threads = 1, .backward = false});
    for (const int threads : {2, 3, 8}) {
      for (int round = 0; round < 5; ++round) {
        EXPECT_EQ(different_bits(one, run_operation(problem, {.threads = threads, .backward = false})), "")
            << Tq << " queries, " << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace qkv::test
