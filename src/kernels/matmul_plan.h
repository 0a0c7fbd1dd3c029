// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace qkv {

/// K elements in a block: sums run from zero inside one and blocks are added in order. A register tile of 512 steps
/// spends under 1 % of its time outside of its inner loop, and 64 columns of a block, 128 KiB in f32, stay in L2.
inline constexpr int64_t kMatmulBlock = 512;

/// Rows of A that are staged together: whole register tiles of every height, and whole vectors.
inline constexpr int64_t kMatmulRows = 48;

/// How C is cut into items of work. No cut changes a bit.
struct MatmulPlan {
  int64_t rows = 0;     ///< of an item, a multiple of kMatmulRows unless there is one row of items
  int64_t columns = 0;  ///< of an item, whole panels
  int64_t row_items = 0;
  int64_t column_items = 0;
  int threads = 1;
};

struct MatmulSize {
  int64_t M, N, K;
  int64_t element_bytes;  ///< of the compute type
  int64_t lanes;
  int64_t panel_width;
  bool stages_b;  ///< B is not packed: an item copies its columns first
};

MatmulPlan plan_matmul(const MatmulSize& size, int threads);

}  // namespace qkv
