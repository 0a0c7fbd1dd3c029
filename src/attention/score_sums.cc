// SPDX-License-Identifier: Apache-2.0
#include "attention/score_sums.h"

#include <array>

#include "attention/backward_plan.h"
#include "attention/bias.h"
#include "attention/check_view.h"
#include "attention/rows.h"

namespace qkv {
namespace {

/// Size of axis `axis` of four, aligned to the right.
int64_t axis_size(const TensorView& view, int axis) {
  const int missing = 4 - view.rank();
  return axis < missing ? 1 : view.size(axis - missing);
}

/// Sum of a row of dS, in lanes.
template <class T>
double row_total(const T* values, int64_t count) {
  std::array<double, 8> lanes{};
  for (int64_t n = 0; n < count; ++n) lanes[static_cast<size_t>(n % 8)] += static_cast<double>(values[n]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

/// Sum of -|distance| dS over a row whose first column has distance `first` (falling by one a column).
template <class T>
double alibi_total(const T* values, int64_t count, int64_t first) {
  std::array<double, 8> lanes{};
  for (int64_t n = 0; n < count; ++n) {
    lanes[static_cast<size_t>(n % 8)] += static_cast<double>(values[n]) * alibi_distance(first - n);
  }
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

template <class T>
ScoreSums<T>::ScoreSums(const Problem& problem, const BucketMap& buckets, const AttentionOptions& options,
                        const AttentionGradients& gradients, int64_t block_keys)
    : problem_(problem),
      buckets_(buckets),
      bias_view_(gradients.bias),
      slopes_view_(gradients.slopes),
      table_view_(gradients.table) {
  if (gradients.slopes) row_slopes_ = AlignedArray<double>(problem.rows());
  if (gradients.table) {
    most_key_blocks_ = ceil_divide(longest_keys(problem), block_keys);
    const int64_t heads = checked_multiply(problem.B * problem.H, most_key_blocks_, "d_table");
    table_sums_ = AlignedArray<double>(checked_multiply(heads, problem.table_buckets, "d_table"));
  }
  if (!gradients.bias) return;
  bias_ = make_operand(gradients.bias);
  bias_B_ = axis_size(options.bias, 0);
  bias_H_ = axis_size(options.bias, 1);
  bias_sums_b_ = bias_B_ < problem.B;
  bias_sums_h_ = bias_H_ < problem.H;
  full_queries_ = axis_size(options.bias, 2) == problem.Tq;
  full_keys_ = axis_size(options.bias, 3) == problem.Tk;
  if (!full_keys_) {
    row_bias_ = AlignedArray<double>(problem.rows());
  } else if (!full_queries_) {
    key_bias_ = AlignedArray<double>(problem.B * problem.H * problem.Tk);
  }
}

template <class T>
void ScoreSums<T>::add_tile(const TileRange& tile, int64_t key_block, int64_t begin, int64_t end, const T* d_scores,
                            int64_t stride) {
  if (table_sums_.get() != nullptr) add_table(tile, key_block, begin, end, d_scores, stride);
  if (key_bias_.get() != nullptr) {
    double* sums = key_bias_.get() + key_sum(tile.b, tile.h, tile.first_key);
    for (int64_t r = 0; r < tile.rows; ++r) {
      for (int64_t c = begin; c < end; ++c) sums[c] += static_cast<double>(d_scores[r * stride + c]);
    }
  } else if (bias_ && full_queries_ && full_keys_ && !bias_needs_own_pass()) {
    std::array<T, kBackwardRows> ones;
    ones.fill(T{1});
    StoredRows columns = stored_rows(bias_, tile.b, tile.h, tile.first_row, tile.rows, end - begin);
    columns.data = bias_.at(tile.b, tile.h, tile.first_row, tile.first_key + begin);
    kernels().attention<T>().store_rows(d_scores + begin, stride, ones.data(), columns);
  }
}

/// The bucket depends on i - j alone, so dS is summed along diagonals first, then each diagonal goes to its bucket.
template <class T>
void ScoreSums<T>::add_table(const TileRange& tile, int64_t key_block, int64_t begin, int64_t end, const T* d_scores,
                             int64_t stride) {
  std::array<double, kBackwardRows + kMostForwardKeys> diagonals{};
  for (int64_t r = 0; r < tile.rows; ++r) {
    double* diagonal = diagonals.data() + tile.rows - 1 - r;
    for (int64_t c = begin; c < end; ++c) diagonal[c] += static_cast<double>(d_scores[r * stride + c]);
  }
  const int64_t block = (tile.b * problem_.H + tile.h) * most_key_blocks_ + key_block;
  double* sums = table_sums_.get() + block * problem_.table_buckets;
  const int64_t first = tile.first_row + tile.rows - 1 + problem_.sequence(tile.b).offset - tile.first_key;
  for (int64_t n = begin; n < tile.rows - 1 + end; ++n) sums[buckets_(first - n)] += diagonals[static_cast<size_t>(n)];
}

template <class T>
void ScoreSums<T>::add_rows(const TileRange& tile, int64_t begin, int64_t end, const T* d_scores, int64_t stride) {
  const int64_t first = contiguous_row(problem_, tile.b, tile.h) + tile.first_row;
  const int64_t offset = problem_.sequence(tile.b).offset;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const T* row = d_scores + r * stride + begin;
    const int64_t distance = tile.first_row + r + offset - (tile.first_key + begin);
    if (row_slopes_.get() != nullptr) row_slopes_[first + r] += alibi_total(row, end - begin, distance);
    if (row_bias_.get() != nullptr) row_bias_[first + r] += row_total(row, end - begin);
  }
}

template <class T>
void ScoreSums<T>::finish() {
  if (bias_ && !(full_queries_ && full_keys_)) finish_bias();
  if (slopes_view_) finish_slopes();
  if (table_view_) finish_table();
}

template <class T>
void ScoreSums<T>::finish_bias() {
  const int64_t rows = full_queries_ ? problem_.Tq : 1;
  const int64_t keys = full_keys_ ? problem_.Tk : 1;
  AlignedArray<double> sums(bias_B_ * bias_H_ * rows * keys);
  for (int64_t b = 0; b < problem_.B; ++b) {
    for (int64_t h = 0; h < problem_.H; ++h) {
      double* sum = sums.get() + ((bias_sums_b_ ? 0 : b) * bias_H_ + (bias_sums_h_ ? 0 : h)) * rows * keys;
      if (full_keys_) {
        for (int64_t j = 0; j < problem_.Tk; ++j) sum[j] += key_bias_[key_sum(b, h, j)];
      } else {
        const double* row = row_bias_.get() + contiguous_row(problem_, b, h);
        for (int64_t i = 0; i < problem_.Tq; ++i) sum[full_queries_ ? i : 0] += row[i];
      }
    }
  }
  const double* sum = sums.get();
  for (int64_t b = 0; b < bias_B_; ++b) {
    for (int64_t h = 0; h < bias_H_; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < keys; ++j) store_from_double(bias_.dtype, bias_.mutable_at(b, h, i, j), *sum++);
      }
    }
  }
}

template <class T>
void ScoreSums<T>::finish_slopes() {
  for (int64_t h = 0; h < problem_.H; ++h) {
    double total = 0;
    for (int64_t b = 0; b < problem_.B; ++b) {
      const double* row = row_slopes_.get() + contiguous_row(problem_, b, h);
      for (int64_t i = 0; i < problem_.sequence(b).Tq; ++i) total += row[i];
    }
    store_from_double(slopes_view_.dtype(), slopes_view_.at(h * slopes_view_.stride(0)), total);
  }
}

template <class T>
void ScoreSums<T>::finish_table() {
  for (int64_t h = 0; h < problem_.H; ++h) {
    for (int64_t bucket = 0; bucket < problem_.table_buckets; ++bucket) {
      double total = 0;
      for (int64_t b = 0; b < problem_.B; ++b) {
        const double* sums = table_sums_.get() + (b * problem_.H + h) * most_key_blocks_ * problem_.table_buckets;
        for (int64_t block = 0; block < most_key_blocks_; ++block) {
          total += sums[block * problem_.table_buckets + bucket];
        }
      }
      store_from_double(table_view_.dtype(), table_view_.at(h * table_view_.stride(0) + bucket * table_view_.stride(1)),
                        total);
    }
  }
}

template class ScoreSums<float>;
template class ScoreSums<double>;

}  // namespace qkv
