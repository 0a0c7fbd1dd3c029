// SPDX-License-Identifier: Apache-2.0
//
// An element of C depends on its row of A, its column of B and K, not on what else is computed, by whom or from which
// layout.
#include "matmul_problem.h"
#include "operation.h"

namespace qkv::test {
namespace {

struct Operands {
  StridedTensor a, b, bias, residual;
};

Operands random_operands(DType a, DType b, int64_t M, int64_t N, int64_t K, Layout layout) {
  return {random_matrix(a, {M, K}, layout, 1), random_matrix(b, {K, N}, layout, 2),
          random_matrix(compute_type(a), {N}, Layout::contiguous, 3), random_matrix(a, {M, N}, layout, 4)};
}

TensorView rows_of(const TensorView& x, int64_t begin, int64_t count) {
  return {x.dtype(), x.at(begin * x.stride(0)), {count, x.size(1)}, x.strides()};
}

TensorView columns_of(const TensorView& x, int64_t begin, int64_t count) {
  return {x.dtype(), x.at(begin * x.stride(1)), {x.size(0), count}, x.strides()};
}

/// Row-major bits of rows [row, row + rows) and columns [column, column + columns) computed by themselves.
template <class B>
std::vector<char> computed(const Operands& in, const B& b, int64_t row, int64_t rows, int64_t column, int64_t columns,
                           int threads) {
  const StridedTensor c(in.a.view().dtype(), {rows, columns}, Layout::contiguous);
  const TensorView bias(in.bias.view().dtype(), in.bias.view().at(column), {columns});
  matmul(rows_of(in.a.view(), row, rows), b, c.view(),
         {.bias = bias,
          .activation = Activation::gelu,
          .residual = columns_of(rows_of(in.residual.view(), row, rows), column, columns),
          .threads = threads});
  return bits_of(c.view());
}

/// The same rectangle out of the whole result.
std::vector<char> cut(const std::vector<char>& whole, int64_t N, int64_t size, int64_t row, int64_t rows,
                      int64_t column, int64_t columns) {
  std::vector<char> result;
  for (int64_t r = row; r < row + rows; ++r) {
    const auto begin = whole.begin() + (r * N + column) * size;
    result.insert(result.end(), begin, begin + columns * size);
  }
  return result;
}

void expect_same_bits(DType a_dtype, DType b_dtype, int64_t M, int64_t N, int64_t K) {
  SCOPED_TRACE(concat(name(a_dtype), " ", name(b_dtype), " M=", M, " N=", N, " K=", K));
  const Operands in = random_operands(a_dtype, b_dtype, M, N, K, Layout::contiguous);
  const int64_t size = size_of(a_dtype);
  const std::vector<char> whole = computed(in, in.b.view(), 0, M, 0, N, 1);
  for (const int threads : {2, 3, 5}) {
    EXPECT_EQ(computed(in, in.b.view(), 0, M, 0, N, threads), whole) << threads << " threads";
  }
  const PackedMatrix packed(in.b.view());
  EXPECT_EQ(computed(in, packed, 0, M, 0, N, 2), whole) << "packed";
  for (const int64_t row : {int64_t{0}, M / 2, M - 1}) {
    EXPECT_EQ(computed(in, in.b.view(), row, 1, 0, N, 1), cut(whole, N, size, row, 1, 0, N)) << "row " << row;
    EXPECT_EQ(computed(in, packed, row, 1, 0, N, 2), cut(whole, N, size, row, 1, 0, N)) << "packed row " << row;
  }
  for (const int64_t rows : {2, 3, 7, 8, 13, 17}) {
    if (rows > M) break;
    EXPECT_EQ(computed(in, in.b.view(), M - rows, rows, 0, N, 2), cut(whole, N, size, M - rows, rows, 0, N)) << rows;
    EXPECT_EQ(computed(in, packed, M - rows, rows, 0, N, 2), cut(whole, N, size, M - rows, rows, 0, N)) << rows;
  }
  for (const int64_t column : {int64_t{0}, N / 3, N - 1}) {
    const int64_t columns = std::min<int64_t>(N - column, 21);
    EXPECT_EQ(computed(in, columns_of(in.b.view(), column, columns), 0, M, column, columns, 2),
              cut(whole, N, size, 0, M, column, columns))
        << "columns from " << column;
  }
  for (const Layout layout : {Layout::reversed, Layout::padded, Layout::strided, Layout::transposed}) {
    const Operands other = random_operands(a_dtype, b_dtype, M, N, K, layout);
    EXPECT_EQ(computed(other, other.b.view(), 0, M, 0, N, 2), whole) << name(layout);
    EXPECT_EQ(computed(other, PackedMatrix(other.b.view(), 2), 0, M, 0, N, 2), whole) << "packed " << name(layout);
    EXPECT_EQ(computed(other, other.b.view(), 0, 1, 0, N, 2), cut(whole, N, size, 0, 1, 0, N)) << name(layout);
    EXPECT_EQ(computed(other, other.b.view(), 0, 8, 0, N, 2), cut(whole, N, size, 0, 8, 0, N)) << name(layout);
  }
}

TEST(matmul_same_bits, threads_rows_columns_layouts_and_packing) {
  for_each_target([](const std::string&) {
    for (const auto& [a, b] : {std::pair{DType::f32, DType::f32}, std::pair{DType::f64, DType::f64},
                               std::pair{DType::bf16, DType::bf16}, std::pair{DType::f32, DType::bf16}}) {
      expect_same_bits(a, b, 130, 300, 77);
      expect_same_bits(a, b, 30, 85, 1100);
      expect_same_bits(a, b, 17, 1300, 515);
    }
  });
}

TEST(matmul_same_bits, a_large_product_cut_by_any_number_of_threads) {
  const StridedTensor a = random_matrix(DType::f32, {1100, 40}, Layout::transposed, 1);
  const StridedTensor b = random_matrix(DType::f32, {40, 700}, Layout::transposed, 2);
  std::vector<char> first;
  for (const int threads : {1, 2, 3, 5, 16}) {
    const StridedTensor c(DType::f32, {1100, 700}, Layout::contiguous);
    matmul(a.view(), b.view(), c.view(), {.threads = threads});
    if (first.empty()) first = bits_of(c.view());
    EXPECT_EQ(bits_of(c.view()), first) << threads << " threads";
  }
}

}  // namespace
}  // namespace qkv::test
