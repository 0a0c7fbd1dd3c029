// SPDX-License-Identifier: Apache-2.0
//
// Views as rows, for the operations of layer_kernels.h: checks, and the cut into items of work.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/attention_kernels.h"
#include "qkv/support/parallel.h"
#include "qkv/tensor/view.h"

namespace qkv {

/// Checks the operands of one call against its first, whose shape [..., width] and f64-ness rule. Throws Error.
class LayerCheck {
 public:
  LayerCheck(const char* operation, const char* name, const TensorView& first);
  /// Of the first's shape; may be absent unless `needed`.
  void like_first(const char* name, const TensorView& view, bool needed = false) const;
  /// [size], may be absent.
  void vector(const char* name, const TensorView& view, int64_t size) const;
  void threads(int threads) const;
  /// An output may be one of the inputs, but overlap none otherwise.
  void output(const char* name, const MutableTensorView& view, std::initializer_list<TensorView> inputs) const;
  /// Outputs that are not inputs.
  void apart(const char* name, const TensorView& output, const char* other_name, const TensorView& other) const;

 private:
  void operand(const char* name, const TensorView& view, const Dims& shape) const;
  const char* operation_;
  const char* first_name_;
  TensorView first_;
};

inline int64_t width_of(const TensorView& view) { return view.size(view.rank() - 1); }
/// Rows of a view of one to three axes.
int64_t rows_of(const TensorView& view);

/// Rows [first, first + count), all of one index of the outermost of three axes. Null data for an absent view.
StoredRows rows_part(const TensorView& view, int64_t first, int64_t count);

/// Elements below which a second thread costs more than it saves, and of an item of work.
inline constexpr int64_t kLayerItem = int64_t{1} << 15;

inline int64_t rows_per_item(int64_t width) { return std::max<int64_t>(1, kLayerItem / std::max<int64_t>(1, width)); }

/// body(first, count, item, worker) for runs of rows that rows_part takes: items of `rows` rows, the runs of one item
/// in order on one worker.
template <class Body>
void for_each_rows(const TensorView& view, int64_t rows, int threads, const Body& body) {
  const int64_t all = rows_of(view);
  const int64_t inner = view.rank() == 3 ? view.size(1) : std::max<int64_t>(1, all);
  parallel_for((all + rows - 1) / rows, threads, [&](int64_t item, int worker) {
    const int64_t end = std::min(all, (item + 1) * rows);
    for (int64_t first = item * rows; first < end;) {
      const int64_t count = std::min(end - first, inner - first % inner);
      body(first, count, item, worker);
      first += count;
    }
  });
}

}  // namespace qkv
