// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul_plan.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/matmul_kernels.h"
#include "qkv/support/checked.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// Bytes of L2 that one core has; 1 MiB where the system does not say.
int64_t l2_bytes() {
  static const int64_t bytes = [] {
    int64_t known = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    known = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return known > 0 ? known : int64_t{1} << 20;
  }();
  return bytes;
}

/// Columns of a block of B that take half of L2: every row of A meets all of them before the next block comes, the
/// other half is for the sums and the rows that pass.
int64_t most_columns(const MatmulSize& size) {
  const int64_t fit = l2_bytes() / 2 / (kMatmulBlock * size.element_bytes);
  return std::max(size.panel_width, std::min(fit, kMatmulColumns) / size.panel_width * size.panel_width);
}

/// Rows of an item: their sums, at 256 columns, take 1 MiB in f32, and each is touched once a block.
constexpr int64_t kMostRows = 21 * kMatmulRows;

/// Calls below this many multiply-adds, some 10 microseconds, run on one thread: a fork and join costs 3.
constexpr int64_t kSerialWork = int64_t{1} << 19;

/// Cycles of one item, with one vector multiply-add a cycle. Measured: copying an element of B takes a quarter of a
/// cycle in rows and half a cycle when it is transposed; an element of A a sixth.
double item_cost(const MatmulSize& size, int64_t rows, int64_t columns) {
  const double r = static_cast<double>(rows), c = static_cast<double>(columns);
  const double products = r * c / static_cast<double>(size.lanes);
  return products + (size.stages_b ? 0.5 * c : 0.0) + r / 6;
}

MatmulPlan cut(const MatmulSize& size, int64_t rows, int64_t columns) {
  return {rows, columns, ceil_divide(size.M, rows), ceil_divide(size.N, columns), 1};
}

}  // namespace

MatmulPlan plan_matmul(const MatmulSize& size, int threads) {
  const int64_t W = size.panel_width;
  const int64_t most = std::min(most_columns(size), round_up(size.N, W));
  const int64_t rows_each =
      size.M <= kMostRows ? size.M : round_up(ceil_divide(size.M, ceil_divide(size.M, kMostRows)), kMatmulRows);
  MatmulPlan best = cut(size, rows_each, most);
  if (threads == 1 || size.M * size.N < kSerialWork / std::max<int64_t>(1, size.K)) return best;
  const int64_t workers = threads > 0 ? threads : available_threads();
  // The cut whose busiest thread has the least to do, larger items first.
  double least = 0;
  for (int64_t splits = 1; splits <= 4 * workers; splits *= 2) {
    const int64_t rows = round_up(ceil_divide(rows_each, splits), kMatmulRows);
    for (int64_t columns = most; columns > 0; columns -= W) {
      const MatmulPlan plan = cut(size, std::min(rows, rows_each), columns);
      const int64_t rounds = ceil_divide(plan.row_items * plan.column_items, workers);
      const double cost = static_cast<double>(rounds) * item_cost(size, plan.rows, columns);
      if (least == 0 || cost < least) {
        least = cost;
        best = plan;
      }
      if (columns <= W) break;
    }
    if (rows <= kMatmulRows) break;
  }
  best.threads = threads;
  return best;
}

}  // namespace qkv
