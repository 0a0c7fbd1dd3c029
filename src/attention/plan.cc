// SPDX-License-Identifier: Apache-2.0
#include "attention/plan.h"

#include <algorithm>

#include "attention/mask.h"
#include "qkv/support/checked.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

/// A fork and join costs a few microseconds; a core does some 20 multiply-adds per nanosecond. Below this many
/// multiply-adds per worker (about 20 microseconds) another worker does not pay.
constexpr double kWorkPerThread = 4e5;

constexpr int64_t kItemsPerWorker = 4;
constexpr int64_t kSmallestItem = 6;  // one register tile

}  // namespace

std::vector<RowItem> cut_rows(const Problem& problem, int64_t largest, int workers) {
  int64_t rows = largest;
  if (workers > 1) {
    while (rows % (2 * kSmallestItem) == 0 && problem.rows() / rows < kItemsPerWorker * workers) rows /= 2;
  }
  std::vector<RowItem> items;
  for (int64_t b = 0; b < problem.B; ++b) {
    const int64_t Tq = problem.sequence(b).Tq;
    if (Tq == 0) continue;  // heads without rows cost no memory: there may be any number of them
    for (int64_t h = 0; h < problem.H; ++h) {
      for (int64_t end = Tq; end > 0;) {
        const int64_t first = (end - 1) / rows * rows;
        items.push_back({b, h, first, end - first});
        end = first;
      }
    }
  }
  return items;
}

double visible_work(const Problem& problem) {
  double pairs = 0;
  for (const Sequence& sequence : problem.sequences) {
    // Ranges change slowly with the row: a few rows stand for all.
    const int64_t step = std::max<int64_t>(1, sequence.Tq / 16);
    for (int64_t i = 0; i < sequence.Tq; i += step) {
      const KeyRange range = visible_range(problem, sequence, i);
      pairs += static_cast<double>(range.end - range.begin) * static_cast<double>(step);
    }
  }
  return pairs * static_cast<double>(problem.H) * static_cast<double>(problem.D + problem.Dv);
}

int useful_threads(const Problem& problem, double work) {
  const int allowed = problem.threads > 0 ? problem.threads : available_threads();
  return static_cast<int>(std::clamp(work / kWorkPerThread, 1.0, static_cast<double>(allowed)));
}

}  // namespace qkv
