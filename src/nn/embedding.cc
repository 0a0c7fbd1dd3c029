// SPDX-License-Identifier: Apache-2.0
//
// Lookup of rows, and its derivative. Rows of the gradient are sorted by id, keeping their order, so that each row of
// the table has one owner who adds in order.
#include "qkv/nn/embedding.h"

#include <algorithm>
#include <vector>

#include "attention/check_view.h"
#include "kernels/layer_kernels.h"
#include "kernels/layer_rows.h"
#include "nn/rows.h"
#include "support/aligned.h"

namespace qkv {
namespace {

std::vector<int64_t> checked_ids(const TensorView& ids, int64_t vocabulary) {
  require(static_cast<bool>(ids), "embedding: ids are needed, none came");
  require(ids.rank() == 1, "embedding: ids should have 1 axis, got ", ids.shape());
  require(ids.dtype() == DType::i64 || ids.dtype() == DType::i32, "embedding: ids should be i64 or i32, got ",
          name(ids.dtype()));
  std::vector<int64_t> values(static_cast<size_t>(ids.size(0)));
  for (size_t n = 0; n < values.size(); ++n) {
    values[n] = integer_at(ids, static_cast<int64_t>(n));
    require(values[n] >= 0 && values[n] < vocabulary, "embedding: id ", values[n], " at ", n,
            " is outside the table's ", vocabulary, " rows");
  }
  return values;
}

void check_table(const TensorView& table, const TensorView& rows, int64_t ids, const char* rows_name) {
  require(rows.size(0) == ids, "embedding: ", rows_name, " has ", rows.size(0), " rows, there are ", ids, " ids");
  require(table.size(1) == rows.size(1), "embedding: the table has width ", table.size(1), ", ", rows_name, " has ",
          rows.size(1));
  require((table.dtype() == DType::f64) == (rows.dtype() == DType::f64), "embedding: the table is ",
          name(table.dtype()), ", ", rows_name, " is ", name(rows.dtype()), ": f64 goes with f64 only");
}

int useful_threads(const TensorView& rows, int threads) { return rows.elements() < 2 * kLayerItem ? 1 : threads; }

template <class T>
void look_up(const TensorView& table, const std::vector<int64_t>& ids, const MutableTensorView& y,
             const EmbeddingOptions& options) {
  const int threads = useful_threads(y, options.threads);
  for_each_rows(y, rows_per_item(y.size(1)), threads, [&](int64_t first, int64_t count, int64_t, int) {
    for (int64_t n = first; n < first + count; ++n) {
      kernels().layers<T>().add({rows_part(table, ids[static_cast<size_t>(n)], 1), rows_part(options.residual, n, 1),
                                 rows_part(y, n, 1), static_cast<T>(options.scale)});
    }
  });
}

/// Rows order[begin ... end) of d_y, all of one id: their sum, added to the id's row of the table.
template <class T>
void add_rows_of_id(const TensorView& d_y, const int64_t* begin, const int64_t* end, double scale, StoredRows target,
                    T* sums) {
  const int64_t width = d_y.size(1);
  const StoredRows sum_row = {sums, DTypeOf<T>::value, 0, 1, 1, width};
  const LayerKernels<T>& set = kernels().layers<T>();
  std::fill_n(sums, width, T{0});
  for (const int64_t* n = begin; n < end; ++n) set.add({rows_part(d_y, *n, 1), sum_row, sum_row, T{1}});
  set.add({sum_row, target, target, static_cast<T>(scale)});
}

template <class T>
void add_rows(const std::vector<int64_t>& ids, const TensorView& d_y, const MutableTensorView& d_table,
              const EmbeddingOptions& options) {
  std::vector<int64_t> order(ids.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = static_cast<int64_t>(n);
  const auto id_of = [&](int64_t n) { return ids[static_cast<size_t>(n)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return id_of(a) < id_of(b); });
  std::vector<size_t> starts;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || id_of(order[i]) != id_of(order[i - 1])) starts.push_back(i);
  }
  starts.push_back(order.size());
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  const int threads = useful_threads(d_y, options.threads);
  const int64_t padded = (d_y.size(1) + kLayerPadding - 1) / kLayerPadding * kLayerPadding;
  const AlignedArray<T> sums(parallel_workers(groups, threads) * padded, kUninitialised);
  parallel_for(groups, threads, [&](int64_t group, int worker) {
    const size_t begin = starts[static_cast<size_t>(group)], end = starts[static_cast<size_t>(group) + 1];
    add_rows_of_id<T>(d_y, order.data() + begin, order.data() + end, options.scale,
                      rows_part(d_table, id_of(order[begin]), 1), sums.get() + worker * padded);
  });
}

}  // namespace

void embedding_forward(const TensorView& table, const TensorView& ids, const MutableTensorView& y,
                       const EmbeddingOptions& options) {
  check_rows(table, "embedding", "the table");
  check_rows(y, "embedding", "y");
  const std::vector<int64_t> values = checked_ids(ids, table.size(0));
  check_table(table, y, ids.size(0), "y");
  const LayerCheck check("embedding", "y", y);
  check.like_first("residual", options.residual);
  check.threads(options.threads);
  check.output("y", y, {options.residual});
  check.apart("y", y, "the table", table);
  check.apart("y", y, "ids", ids);
  if (y.dtype() == DType::f64) {
    look_up<double>(table, values, y, options);
  } else {
    look_up<float>(table, values, y, options);
  }
}

void embedding_backward(const TensorView& ids, const TensorView& d_y, const MutableTensorView& d_table,
                        const EmbeddingOptions& options) {
  check_rows(d_table, "embedding_backward", "the table's gradient");
  check_rows(d_y, "embedding_backward", "d_y");
  const std::vector<int64_t> values = checked_ids(ids, d_table.size(0));
  check_table(d_table, d_y, ids.size(0), "d_y");
  const LayerCheck check("embedding_backward", "d_y", d_y);
  check.threads(options.threads);
  check.output("the table's gradient", d_table, {});
  check.apart("the table's gradient", d_table, "d_y", d_y);
  if (d_y.elements() == 0) return;
  if (d_y.dtype() == DType::f64) {
    add_rows<double>(values, d_y, d_table, options);
  } else {
    add_rows<float>(values, d_y, d_table, options);
  }
}

}  // namespace qkv
