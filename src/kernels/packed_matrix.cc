// SPDX-License-Identifier: Apache-2.0
#include "kernels/packed_matrix.h"

#include "kernels/matmul_check.h"
#include "qkv/support/checked.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

template <class T>
AlignedArray<T> pack(const StoredRows& matrix, int64_t steps, int threads) {
  const MatmulKernels<T>& set = kernels().matmul<T>();
  const int64_t W = set.panel_width;
  const int64_t panels = ceil_divide(matrix.columns, W);
  AlignedArray<T> out(checked_multiply(panels * W, steps, "matmul: a packed matrix"), kUninitialised);
  parallel_for(panels, threads, [&](int64_t panel, int) {
    StoredRows columns = matrix;
    columns.data = static_cast<const char*>(matrix.data) + panel * W * matrix.column_stride * size_of(matrix.dtype);
    columns.columns = std::min(W, matrix.columns - panel * W);
    (matrix.dtype == DType::bf16 ? set.stage_pairs : set.stage)(columns, out.get() + panel * W * steps, W, W);
  });
  return out;
}

}  // namespace

PackedMatrix::PackedMatrix(const TensorView& matrix, int threads) {
  check_matrix(matrix, "the matrix to pack", 2);
  require(threads >= 0, "matmul: threads should be 0 or more, got ", threads);
  auto storage = std::make_shared<Storage>();
  storage->set = &kernels();
  storage->dtype = matrix.dtype();
  storage->K = matrix.size(0);
  storage->N = matrix.size(1);
  storage->steps = matrix.dtype() == DType::bf16 ? ceil_divide(storage->K, 2) : storage->K;
  if (matrix.dtype() == DType::f64) {
    storage->width = kernels().matmul<double>().panel_width;
    storage->f64 = pack<double>(stored_rows(matrix), storage->steps, threads);
  } else {
    storage->width = kernels().matmul<float>().panel_width;
    storage->f32 = pack<float>(stored_rows(matrix), storage->steps, threads);
  }
  storage_ = std::move(storage);
}

int64_t PackedMatrix::rows() const { return storage_ ? storage_->K : 0; }
int64_t PackedMatrix::columns() const { return storage_ ? storage_->N : 0; }
DType PackedMatrix::dtype() const { return storage_ ? storage_->dtype : DType::f32; }
int64_t PackedMatrix::bytes() const {
  if (!storage_) return 0;
  const int64_t elements = round_up(storage_->N, storage_->width) * storage_->steps;
  return elements * (storage_->dtype == DType::f64 ? 8 : 4);
}

}  // namespace qkv
