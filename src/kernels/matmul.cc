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
#include "support/work_counter.h"

namespace qkv {
namespace {

/// How elements of K enter a step of the product: one; two of bf16 in B, widened, with two of A; two of both in a bf16
/// dot product.
enum class Form : uint8_t { whole, widened, dot };

Form form_of(DType a, DType b) {
  if (b != DType::bf16) return Form::whole;
  return a == DType::bf16 && kernels().matmul_bf16 != nullptr ? Form::dot : Form::widened;
}

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

/// Some rows and steps of A as a product reads them; strides count elements, or pairs in a dot product.
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
        form_(form_of(a.dtype(), packed != nullptr ? packed->dtype : b.dtype())),
        a_(stored_rows(a)),
        b_(stored_rows(b)),
        packed_(packed),
        c_(stored_rows(c)),
        options_(options),
        gate_(stored_rows(options.gate)),
        residual_(stored_rows(options.residual)),
        N_(c.size(1)),
        K_(a.size(1)),
        a_in_place_(reads_a_in_place()),
        few_rows_(packed == nullptr && c.size(0) <= kFewRows),
        takes_columns_(few_rows_ && b_.row_stride == 1 && b_.column_stride != 1 && (a_in_place_ || a_.rows == 1) &&
                       !stages_a_by_steps() && K_ > 0),
        plan_(plan_matmul({c.size(0), N_, K_, sizeof(T), set_.lanes, set_.panel_width, packed == nullptr},
                          options.threads)) {}

  void run() {
    if (few_rows_) plan_.columns = strip();
    // With few rows a packed matrix is read once, in the order in which it lies: an item is one panel.
    if (packed_ != nullptr && c_.rows <= kFewRows) plan_.columns = set_.panel_width;
    if (takes_columns_) plan_.columns = kColumnsTogether * set_.lanes;
    plan_.column_items = ceil_divide(N_, plan_.columns);
    widen_bias();
    const int64_t block = std::min(K_, kMatmulBlock);
    const int64_t blocks = ceil_divide(K_, kMatmulBlock);
    a_stride_ = round_up(block, kAlignment) + kAlignment;
    if (!a_in_place_) {
      a_size_ = stages_a_by_steps() ? (block + 1) * kMatmulRows : a_stride_ * std::min(c_.rows, kMatmulRows);
    }
    sums_size_ = (few_rows_ || blocks > 1 ? round_up(plan_.rows, kMatmulRows) : kMatmulRows) * plan_.columns;
    if (takes_columns_) {
      sums_size_ = 2 * c_.rows * plan_.columns;
    } else if (few_rows_) {
      b_size_ = kSomeSteps * set_.panel_width;
      sums_size_ = c_.rows * plan_.columns * (blocks > 1 ? 2 : 1);
    } else if (packed_ == nullptr) {
      b_size_ = block * plan_.columns;
    }
    const int64_t size = a_size_ + b_size_ + sums_size_;
    const int64_t items = plan_.row_items * plan_.column_items;
    scratch_ = AlignedArray<T>(parallel_workers(items, plan_.threads) * size, kUninitialised);
    parallel_for(items, plan_.threads, [&](int64_t item, int worker) {
      // Columns outermost: items that follow each other read the same columns of B.
      const int64_t row = item % plan_.row_items * plan_.rows;
      const int64_t column = item / plan_.row_items * plan_.columns;
      const int64_t rows = std::min(plan_.rows, c_.rows - row), columns = std::min(plan_.columns, N_ - column);
      T* scratch = scratch_.get() + worker * size;
      if (takes_columns_) {
        run_columns(column, columns, scratch);
      } else if (few_rows_) {
        run_few_rows(column, columns, scratch);
      } else {
        run_item(row, rows, column, columns, scratch);
      }
      // A row of one repeated element makes sums of columns, not products.
      const bool is_sum = a_.row_stride == 0 && a_.column_stride == 0;
      if (work_counter.on.load(std::memory_order_relaxed) && !is_sum) {
        work_counter.add(work_counter.multiplies, (few_rows_ ? c_.rows : rows) * columns * K_);
      }
    });
  }

 private:
  /// Elements in 64 bytes: keeps scratch aligned, and rows of A off each other's place in the cache.
  static constexpr int64_t kAlignment = 64 / static_cast<int64_t>(sizeof(T));
  /// Up to this many rows B is not copied block by block: it is read once, and the copy would cost as much.
  static constexpr int64_t kFewRows = 16;
  /// Then 16 rows of B, or 64 elements of its columns, are multiplied at a time: they pass through L1.
  static constexpr int64_t kSomeRows = 16;
  /// Columns of an item that takes them where they lie, in vectors.
  static constexpr int64_t kColumnsTogether = 4;
  static constexpr int64_t kSomeSteps = 64;

  bool is_in_pairs() const { return form_ != Form::whole; }
  /// Steps that elements of K make, and elements of scratch that a step of a row of A takes.
  int64_t steps_of(int64_t elements) const { return is_in_pairs() ? ceil_divide(elements, 2) : elements; }

  bool reads_a_in_place() const {
    if (a_.column_stride != 1 || (is_in_pairs() && K_ % 2 != 0)) return false;
    if (form_ != Form::dot) return a_.dtype == DTypeOf<T>::value;
    return (a_.rows <= 1 || a_.row_stride % 2 == 0) && reinterpret_cast<uintptr_t>(a_.data) % sizeof(BFloat16Pair) == 0;
  }

  /// Columns of A are contiguous, rows are not.
  bool stages_a_by_steps() const { return a_.row_stride == 1 && a_.column_stride != 1; }

  /// Columns of an item with few rows: their sums stay in L1, and memory is read in runs of a page.
  int64_t strip() const {
    const int64_t W = set_.panel_width;
    const int64_t workers = parallel_workers(ceil_divide(N_, W), plan_.threads);
    const int64_t most = std::max<int64_t>(kMatmulColumns, 4096 / c_.rows);
    return std::min(most, round_up(ceil_divide(N_, workers), W)) / W * W;
  }

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
      const int64_t count = std::min(kMatmulBlock, K_ - k);
      if (packed_ == nullptr) stage_b(k, count, column, columns, b_scratch);
      for (int64_t r = 0; r < rows; r += kMatmulRows) {
        const int64_t some = std::min(kMatmulRows, rows - r);
        T* group = sums + (blocks > 1 ? r : 0) * plan_.columns;
        const Broadcast<T> a = stage_a(row + r, some, k, count, a_scratch);
        for (int64_t c = 0; c < columns; c += set_.panel_width) {
          const T* panel = packed_ == nullptr ? b_scratch + c * steps_of(count)
                                              : packed_->panel<T>(column + c) + steps_of(k) * set_.panel_width;
          multiply(a, panel, set_.panel_width, group + c, steps_of(count), some,
                   std::min(set_.panel_width, columns - c), block == 0 ? MatmulInto::set : MatmulInto::add);
        }
        if (block + 1 == blocks) finish(row + r, some, column, columns, group);
      }
    }
  }

  /// All rows, columns of B where they lie: as many as a vector has lanes, each from end to end.
  void run_columns(int64_t column, int64_t columns, T* scratch) const {
    T* sums = scratch + a_size_;
    T* sums_of_block = sums + c_.rows * plan_.columns;
    for (int64_t c = 0; c < columns; c += set_.lanes) {
      const int64_t wide = std::min(set_.lanes, columns - c);
      for (int64_t k = 0; k == 0 || k < K_; k += kMatmulBlock) {
        const int64_t count = std::min(kMatmulBlock, K_ - k);
        const Broadcast<T> a = stage_a(0, c_.rows, k, count, scratch);
        const StoredRows some = exchanged(part(b_, k, column + c, count, wide));
        multiply_columns(a, some, k == 0 ? sums + c : sums_of_block);
        for (int64_t r = 0; k > 0 && r < c_.rows; ++r) {
          for (int64_t l = 0; l < set_.lanes; ++l) {
            sums[r * plan_.columns + c + l] += sums_of_block[r * plan_.columns + l];
          }
        }
      }
    }
    finish(0, c_.rows, column, columns, sums);
  }

  void multiply_columns(const Broadcast<T>& a, const StoredRows& columns, T* sums) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (form_ == Form::dot) {
        ScoreTile<float, BFloat16Pair> product{};
        product.q = reinterpret_cast<const BFloat16Pair*>(a.data);
        product.q_stride = a.row;
        product.rows = c_.rows;
        product.D = steps_of(columns.columns);
        product.scores = sums;
        product.scores_stride = plan_.columns;
        return kernels().matmul_bf16->product_of_columns(product, columns);
      }
    }
    ScoreTile<T> product{};
    product.q = a.data;
    product.q_stride = a.row;
    product.rows = c_.rows;
    product.D = columns.columns;
    product.scores = sums;
    product.scores_stride = plan_.columns;
    set_.product_of_columns(product, columns);
  }

  /// All rows, a few steps at a time. The sums of a block go on from step to step in L1, with the bits they would have
  /// in registers.
  void run_few_rows(int64_t column, int64_t columns, T* scratch) const {
    T* a_scratch = scratch;
    T* b_scratch = a_scratch + a_size_;
    T* sums = b_scratch + b_size_;
    const int64_t blocks = std::max<int64_t>(1, ceil_divide(K_, kMatmulBlock));
    T* sums_of_block = blocks > 1 ? sums + c_.rows * plan_.columns : sums;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = block * kMatmulBlock;
      const int64_t count = std::min(kMatmulBlock, K_ - k);
      const Broadcast<T> a = stage_a(0, c_.rows, k, count, a_scratch);
      // Rows of B are read through all columns, columns of B down to the end of the block.
      const int64_t width = b_.column_stride == 1 ? columns : set_.panel_width;
      T* into = block == 0 ? sums : sums_of_block;
      for (int64_t c = 0; c < columns; c += width) {
        multiply_few(a, k, count, column + c, std::min(width, columns - c), b_scratch, into + c);
      }
      for (int64_t r = 0; block > 0 && r < c_.rows; ++r) {
        T* total = sums + r * plan_.columns;
        const T* more = sums_of_block + r * plan_.columns;
        for (int64_t c = 0; c < columns; ++c) total[c] += more[c];
      }
    }
    for (int64_t c = 0; c < columns; c += kMatmulColumns) {
      finish(0, c_.rows, column + c, std::min(kMatmulColumns, columns - c), sums + c);
    }
  }

  void multiply_few(const Broadcast<T>& a, int64_t k, int64_t count, int64_t column, int64_t columns, T* b_scratch,
                    T* sums) const {
    const int64_t W = set_.panel_width;
    const bool is_direct = form_ == Form::whole && b_.column_stride == 1 && b_.dtype == DTypeOf<T>::value;
    const int64_t direct = is_direct ? columns / set_.lanes * set_.lanes : 0;
    const int64_t some = b_.column_stride == 1 ? kSomeRows : kSomeSteps;
    for (int64_t t = 0; t == 0 || t < count; t += some) {  // once without any, for zeros
      const int64_t now = std::min(some, count - t);
      const MatmulInto into = t == 0 ? MatmulInto::set : MatmulInto::go_on;
      const int64_t a_steps = form_ == Form::dot ? t / 2 : t;
      const Broadcast<T> a_part = {a.data + a_steps * a.step, a.row, a.step};
      if (direct > 0) {
        const StoredRows b = part(b_, k + t, column, now, direct);
        multiply(a_part, static_cast<const T*>(b.data), b.row_stride, sums, now, c_.rows, direct, into);
      }
      for (int64_t c = direct; c < columns; c += W) {
        const int64_t wide = std::min(W, columns - c);
        stage_panel(part(b_, k + t, column + c, now, wide), b_scratch);
        multiply(a_part, b_scratch, W, sums + c, steps_of(now), c_.rows, wide, into);
      }
    }
  }

  void stage_panel(const StoredRows& source, T* out) const {
    const int64_t W = set_.panel_width;
    (is_in_pairs() ? set_.stage_pairs : set_.stage)(source, out, W, W);
  }

  /// Elements [k, k + count) of some columns of B to panels. Where rows of B are contiguous the panels are filled side
  /// by side, so that memory is read in long runs.
  void stage_b(int64_t k, int64_t count, int64_t column, int64_t columns, T* out) const {
    const int64_t W = set_.panel_width;
    const int64_t together = b_.column_stride == 1 ? kSomeRows : count;
    for (int64_t t = 0; t < count; t += together) {
      const int64_t some = std::min(together, count - t);
      for (int64_t c = 0; c < columns; c += W) {
        stage_panel(part(b_, k + t, column + c, some, std::min(W, columns - c)),
                    out + c * steps_of(count) + steps_of(t) * W);
      }
    }
  }

  Broadcast<T> stage_a(int64_t row, int64_t rows, int64_t k, int64_t count, T* out) const {
    const StoredRows source = part(a_, row, k, rows, count);
    if (a_in_place_) {
      return {static_cast<const T*>(source.data), form_ == Form::dot ? a_.row_stride / 2 : a_.row_stride, 1};
    }
    if (stages_a_by_steps()) {
      const int64_t padded = round_up(rows, set_.lanes);
      (form_ == Form::dot ? set_.stage_pairs : set_.stage)(exchanged(source), out, kMatmulRows, padded);
      if (form_ == Form::widened && count % 2 != 0) std::fill_n(out + count * kMatmulRows, kMatmulRows, T{0});
      return {out, 1, kMatmulRows};
    }
    if (form_ == Form::dot) {
      kernels().matmul_bf16->stage_pair_rows(source, reinterpret_cast<BFloat16Pair*>(out), a_stride_);
    } else {
      set_.stage(source, out, a_stride_, round_up(count, std::max<int64_t>(2, set_.lanes)));
    }
    return {out, a_stride_, 1};
  }

  void multiply(const Broadcast<T>& a, const T* b, int64_t b_step, T* sums, int64_t steps, int64_t rows,
                int64_t columns, MatmulInto into) const {
    const MatmulProduct<T> product = {a.data,        a.row, a.step, b,       b_step, sums,
                                      plan_.columns, steps, rows,   columns, into};
    if constexpr (sizeof(T) == sizeof(float)) {
      if (form_ == Form::dot) return kernels().matmul_bf16->product(product);
    }
    (form_ == Form::widened ? set_.product_of_pairs : set_.product)(product);
  }

  void finish(int64_t row, int64_t rows, int64_t column, int64_t columns, T* sums) const {
    const StoredRows c = part(c_, row, column, rows, columns);
    set_.finish({sums, plan_.columns, rows, columns, options_.bias ? bias_.get() + column : nullptr,
                 options_.activation, part(gate_, row, column, rows, columns),
                 part(residual_, row, column, rows, columns), const_cast<void*>(c.data), c.dtype, c.row_stride,
                 c.column_stride});
  }

  const MatmulKernels<T>& set_;
  Form form_;
  StoredRows a_;
  StoredRows b_;
  const PackedMatrix::Storage* packed_;
  StoredRows c_;
  const MatmulOptions& options_;
  StoredRows gate_;
  StoredRows residual_;
  int64_t N_, K_;
  bool a_in_place_;
  bool few_rows_;
  bool takes_columns_;
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
