// SPDX-License-Identifier: Apache-2.0
// C = activation(A B + bias) * gate + residual: check, cut into items, run them.
//
// An item is some rows times at most 256 columns of C. It walks K in blocks of 512. A block of its columns of B, half
// of L2, is copied into panels of 4 vectors (or lies so already); then 48 rows of A at a time meet all of these panels:
// a register tile of 6 rows x 4 vectors reads 256 bytes of B from L2 and 24 of A for 24 multiply-adds a step, a third
// of what L2 delivers. Sums are kept in f32 (or f64) until the last block, whose rows are finished and stored while
// they are in L1 or L2.
//
// In bytes from memory an item reads its columns of B once and its rows of A once; A as a whole is read once for every
// 256 columns, from L3 or memory at a byte a cycle.
#include "qkv/kernels/matmul.h"

#include <algorithm>
#include <vector>

#include "kernels/matmul_check.h"
#include "kernels/matmul_kernels.h"
#include "kernels/matmul_plan.h"
#include "kernels/packed_matrix.h"
#include "qkv/support/checked.h"
#include "qkv/support/parallel.h"
#include "support/aligned.h"

namespace qkv {
namespace {

/// The part of a matrix that begins at (row, column).
StoredRows part(const StoredRows& whole, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  StoredRows result = whole;
  if (whole.data != nullptr) {
    result.data = static_cast<const char*>(whole.data) +
                  (row * whole.row_stride + column * whole.column_stride) * size_of(whole.dtype);
  }
  result.rows = rows;
  result.columns = columns;
  return result;
}

StoredRows exchanged(const StoredRows& x) {
  return {x.data, x.dtype, x.column_stride, x.row_stride, x.columns, x.rows};
}

/// Rows from `first` on of A, as a product reads them.
template <class T>
struct Broadcast {
  const T* data;
  int64_t row;
  int64_t step;
};

template <class T>
class Matmul {
 public:
  Matmul(const TensorView& a, const TensorView& b, const PackedMatrix::Storage* packed, const MutableTensorView& c,
         const MatmulOptions& options)
      : set_(kernels().matmul<T>()),
        a_(stored_rows(a)),
        b_(stored_rows(b)),
        packed_(packed),
        c_(stored_rows(c)),
        options_(options),
        gate_(stored_rows(options.gate)),
        residual_(stored_rows(options.residual)),
        M_(c.size(0)),
        N_(c.size(1)),
        K_(a.size(1)),
        plan_(plan_matmul({M_, N_, K_, sizeof(T), set_.lanes, set_.panel_width, packed == nullptr}, options.threads)) {}

  void run() {
    widen_bias();
    const int64_t items = plan_.row_items * plan_.column_items;
    const int workers = parallel_workers(items, plan_.threads);
    const int64_t block = std::min(K_, kMatmulBlock);
    a_stride_ = round_up(block, set_.lanes) + kAlignment;
    a_size_ = reads_a_in_place() ? 0 : std::max(a_stride_, block) * kMatmulRows;
    b_size_ = packed_ != nullptr ? 0 : block * plan_.columns;
    sums_size_ = (K_ > kMatmulBlock ? plan_.rows : std::min(plan_.rows, kMatmulRows)) * plan_.columns;
    scratch_ = AlignedArray<T>(workers * (a_size_ + b_size_ + sums_size_), kUninitialised);
    parallel_for(items, plan_.threads, [&](int64_t item, int worker) {
      // Columns outermost: items that follow each other read the same columns of B.
      const int64_t row = item % plan_.row_items * plan_.rows;
      const int64_t column = item / plan_.row_items * plan_.columns;
      run_item(row, std::min(plan_.rows, M_ - row), column, std::min(plan_.columns, N_ - column),
               scratch_.get() + worker * (a_size_ + b_size_ + sums_size_));
    });
  }

 private:
  /// Elements in 64 bytes: keeps scratch aligned, and rows of A off each other's place in the cache.
  static constexpr int64_t kAlignment = 64 / static_cast<int64_t>(sizeof(T));

  bool reads_a_in_place() const { return a_.dtype == DTypeOf<T>::value && a_.column_stride == 1; }

  void widen_bias() {
    if (!options_.bias) return;
    const int64_t padded = round_up(N_, plan_.columns);
    bias_ = AlignedArray<T>(padded, kUninitialised);
    set_.stage(stored_rows(options_.bias), bias_.get(), padded, padded);
  }

  void run_item(int64_t row, int64_t rows, int64_t column, int64_t columns, T* scratch) const {
    T* a_scratch = scratch;
    T* b_scratch = a_scratch + a_size_;
    T* sums = b_scratch + b_size_;
    const int64_t blocks = std::max<int64_t>(1, ceil_divide(K_, kMatmulBlock));
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = block * kMatmulBlock;
      const int64_t steps = std::min(kMatmulBlock, K_ - k);
      if (packed_ == nullptr) stage_b(k, steps, column, columns, b_scratch);
      for (int64_t r = 0; r < rows; r += kMatmulRows) {
        const int64_t count = std::min(kMatmulRows, rows - r);
        T* group = sums + (blocks > 1 ? r : 0) * plan_.columns;
        multiply(row + r, count, k, steps, column, columns, a_scratch, b_scratch, group);
        if (block + 1 == blocks) finish(row + r, count, column, columns, group);
      }
    }
  }

  /// Steps [k, k + steps) of some columns of B to panels. Where rows of B are contiguous the panels are filled side by
  /// side, so that memory is read in long runs.
  void stage_b(int64_t k, int64_t steps, int64_t column, int64_t columns, T* out) const {
    const int64_t W = set_.panel_width;
    constexpr int64_t kSomeRows = 16;
    const int64_t together = b_.column_stride == 1 ? kSomeRows : steps;
    for (int64_t t = 0; t < steps; t += together) {
      const int64_t some = std::min(together, steps - t);
      for (int64_t c = 0; c < columns; c += W) {
        set_.stage(part(b_, k + t, column + c, some, std::min(W, columns - c)), out + c * steps + t * W, W, W);
      }
    }
  }

  Broadcast<T> stage_a(int64_t row, int64_t rows, int64_t k, int64_t steps, T* out) const {
    const StoredRows source = part(a_, row, k, rows, steps);
    if (reads_a_in_place()) return {static_cast<const T*>(source.data), a_.row_stride, 1};
    if (a_.row_stride == 1 && a_.column_stride != 1) {
      set_.stage(exchanged(source), out, kMatmulRows, round_up(rows, set_.lanes));
      return {out, 1, kMatmulRows};
    }
    set_.stage(source, out, a_stride_, round_up(steps, set_.lanes));
    return {out, a_stride_, 1};
  }

  void multiply(int64_t row, int64_t rows, int64_t k, int64_t steps, int64_t column, int64_t columns, T* a_scratch,
                const T* b_scratch, T* sums) const {
    const int64_t W = set_.panel_width;
    const Broadcast<T> a = stage_a(row, rows, k, steps, a_scratch);
    for (int64_t c = 0; c < columns; c += W) {
      const T* panel = packed_ == nullptr ? b_scratch + c * steps : packed_->panel<T>(column + c) + k * W;
      set_.product(
          {a.data, a.row, a.step, panel, W, sums + c, plan_.columns, steps, rows, std::min(W, columns - c), k > 0});
    }
  }

  void finish(int64_t row, int64_t rows, int64_t column, int64_t columns, T* sums) const {
    const StoredRows c = part(c_, row, column, rows, columns);
    set_.finish({sums, plan_.columns, rows, columns, options_.bias ? bias_.get() + column : nullptr,
                 options_.activation, part(gate_, row, column, rows, columns),
                 part(residual_, row, column, rows, columns), const_cast<void*>(c.data), c.dtype, c.row_stride,
                 c.column_stride});
  }

  const MatmulKernels<T>& set_;
  StoredRows a_;
  StoredRows b_;
  const PackedMatrix::Storage* packed_;
  StoredRows c_;
  const MatmulOptions& options_;
  StoredRows gate_;
  StoredRows residual_;
  int64_t M_, N_, K_;
  MatmulPlan plan_;
  int64_t a_stride_ = 0, a_size_ = 0, b_size_ = 0, sums_size_ = 0;
  AlignedArray<T> bias_;
  AlignedArray<T> scratch_;
};

void run_matmul(const TensorView& a, const TensorView& b, const PackedMatrix::Storage* packed,
                const MutableTensorView& c, const MatmulOptions& options) {
  if (c.elements() == 0) return;
  if (a.dtype() == DType::f64) {
    Matmul<double>(a, b, packed, c, options).run();
  } else {
    Matmul<float>(a, b, packed, c, options).run();
  }
}

TensorView exchanged_axes(const TensorView& x) {
  require(x.rank() == 2, "transposed: expected 2 axes, got ", x.shape());
  return {x.dtype(), x.data(), {x.size(1), x.size(0)}, {x.stride(1), x.stride(0)}};
}

}  // namespace

void matmul(const TensorView& a, const TensorView& b, const MutableTensorView& c, const MatmulOptions& options) {
  check_matrix(b, "b", 2);
  check_matmul(a, b, b.shape(), b.dtype(), c, options);
  run_matmul(a, b, nullptr, c, options);
}

void matmul(const TensorView& a, const PackedMatrix& b, const MutableTensorView& c, const MatmulOptions& options) {
  require(static_cast<bool>(b), "matmul: b is needed, none came");
  check_matmul(a, {}, {b.rows(), b.columns()}, b.dtype(), c, options);
  require(b.storage()->set == &kernels(), "matmul: b was packed for ", b.storage()->set->name, ", in use is ",
          kernels().name);
  run_matmul(a, {}, b.storage(), c, options);
}

TensorView transposed(const TensorView& matrix) { return exchanged_axes(matrix); }

MutableTensorView transposed(const MutableTensorView& matrix) {
  const TensorView view = exchanged_axes(matrix);
  return {view.dtype(), matrix.data(), view.shape(), view.strides()};
}

void column_sums(const TensorView& x, const MutableTensorView& sums, const TensorView& residual, int threads) {
  check_matrix(x, "x", 2);
  check_matrix(sums, "sums", 1);
  const auto as_row = [](const TensorView& view) {
    return view ? TensorView(view.dtype(), view.data(), {1, view.size(0)}, {0, view.stride(0)}) : view;
  };
  if (residual) check_matrix(residual, "residual", 1);
  static const float one_f32 = 1;
  static const double one_f64 = 1;
  const Dims shape = {1, x.size(0)}, strides = {0, 0};
  const TensorView ones =
      x.dtype() == DType::f64 ? TensorView(&one_f64, shape, strides) : TensorView(&one_f32, shape, strides);
  matmul(ones, x, {sums.dtype(), sums.data(), {1, sums.size(0)}, {0, sums.stride(0)}},
         {.residual = as_row(residual), .threads = threads});
}

}  // namespace qkv
