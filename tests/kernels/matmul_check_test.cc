// SPDX-License-Identifier: Apache-2.0
//
// What matmul refuses, in which words, and that nothing is written then.
#include "matmul_problem.h"
#include "operation.h"
#include "qkv/support/error.h"

namespace qkv::test {
namespace {

template <class Call>
void expect_error(Call call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error, expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), text);
  }
}

class MatmulCheck : public ::testing::Test {
 protected:
  std::vector<float> a_ = std::vector<float>(12, 1), b_ = std::vector<float>(20, 1), c_ = std::vector<float>(15, 7);
  std::vector<double> wide_ = std::vector<double>(20, 1);
  TensorView a() const { return {a_.data(), {3, 4}}; }
  TensorView b() const { return {b_.data(), {4, 5}}; }
  MutableTensorView c() { return {c_.data(), {3, 5}}; }
  void TearDown() override { EXPECT_EQ(c_, std::vector<float>(15, 7)) << "c was written"; }
};

TEST_F(MatmulCheck, shapes_and_dtypes) {
  expect_error([&] { matmul({}, b(), c()); }, "matmul: a is needed, none came");
  expect_error([&] { matmul(TensorView(a_.data(), {12}), b(), c()); }, "matmul: a should have 2 axes, got [12]");
  expect_error([&] { matmul(a(), TensorView(b_.data(), {5, 4}), c()); }, "matmul: b has 5 rows, a has 4 columns");
  expect_error(
      [&] {
        matmul(a(), b(), MutableTensorView(c_.data(), {5, 3}));
      },
      "matmul: c should be [3, 5], got [5, 3]");
  expect_error(
      [&] {
        matmul(a(), TensorView(wide_.data(), {4, 5}), c());
      },
      "matmul: b is f64, a is f32: f64 goes with f64 only");
  expect_error(
      [&] {
        matmul(a(), b(), MutableTensorView(wide_.data(), {3, 5}));
      },
      "matmul: c is f64, a is f32: f64 goes with f64 only");
  const std::vector<int32_t> whole(20);
  expect_error(
      [&] {
        matmul(a(), TensorView(whole.data(), {4, 5}), c());
      },
      "matmul: b should be f64, f32, bf16 or f16, got i32");
  expect_error([&] { matmul(a(), b(), c(), {.bias = TensorView(b_.data(), {4})}); },
               "matmul: bias should be [5], got [4]");
  expect_error([&] { matmul(a(), b(), c(), {.gate = b()}); }, "matmul: gate should be [3, 5], got [4, 5]");
  expect_error([&] { matmul(a(), b(), c(), {.residual = b()}); }, "matmul: residual should be [3, 5], got [4, 5]");
  expect_error([&] { matmul(a(), b(), c(), {.threads = -1}); }, "matmul: threads should be 0 or more, got -1");
  expect_error([&] { matmul(a(), PackedMatrix(), c()); }, "matmul: b is needed, none came");
  expect_error(
      [&] {
        matmul(TensorView(a_.data(), {3, 3}), PackedMatrix(b()), c());
      },
      "matmul: b has 4 rows, a has 3 columns");
  expect_error([&] { PackedMatrix(TensorView(b_.data(), {20})); },
               "matmul: the matrix to pack should have 2 axes, got [20]");
  expect_error([&] { transposed(TensorView(b_.data(), {20})); }, "transposed: expected 2 axes, got [20]");
}

TEST_F(MatmulCheck, overlap) {
  std::vector<float> memory(100, 7);
  const auto at = [&](int64_t offset, const Dims& shape) { return MutableTensorView(memory.data() + offset, shape); };
  expect_error([&] { matmul(at(0, {3, 4}), b(), at(11, {3, 5})); }, "matmul: c overlaps a");
  expect_error([&] { matmul(a(), at(0, {4, 5}), at(19, {3, 5})); }, "matmul: c overlaps b");
  expect_error([&] { matmul(a(), b(), at(0, {3, 5}), {.bias = at(14, {5})}); }, "matmul: c overlaps bias");
  expect_error([&] { matmul(a(), b(), at(0, {3, 5}), {.gate = at(0, {3, 5})}); }, "matmul: c overlaps gate");
  expect_error([&] { matmul(a(), b(), at(0, {3, 5}), {.residual = at(1, {3, 5})}); }, "matmul: c overlaps residual");
  expect_error(
      [&] {
        matmul(a(), b(), MutableTensorView(memory.data(), {3, 5}, {0, 1}));
      },
      "matmul: c overlaps itself");
  EXPECT_EQ(memory, std::vector<float>(100, 7));
  // Interleaved columns share no element.
  matmul(TensorView(memory.data(), {3, 4}, {10, 2}), b(), MutableTensorView(memory.data() + 1, {3, 5}, {10, 2}));
}

TEST_F(MatmulCheck, a_matrix_packed_for_another_instruction_set) {
  const std::vector<std::string> targets = supported_targets();
  if (targets.size() < 2) GTEST_SKIP() << "one instruction set only";
  const std::string before = chosen_target();
  choose_target(targets[1]);
  const PackedMatrix packed(b());
  choose_target(targets[0]);
  expect_error([&] { matmul(a(), packed, c()); },
               "matmul: b was packed for " + targets[1] + ", in use is " + targets[0]);
  choose_target(before);
}

TEST(packed_matrix, knows_its_shape_and_copies_share_memory) {
  std::vector<BFloat16> values(12);
  const PackedMatrix packed(TensorView(values.data(), {3, 4}));
  const PackedMatrix copy = packed;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(copy.rows(), 3);
  EXPECT_EQ(copy.columns(), 4);
  EXPECT_EQ(copy.dtype(), DType::bf16);
  EXPECT_EQ(copy.storage(), packed.storage());
  EXPECT_GE(copy.bytes(), 12 * 2);
  EXPECT_FALSE(static_cast<bool>(PackedMatrix()));
}

}  // namespace
}  // namespace qkv::test
