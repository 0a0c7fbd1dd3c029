// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/problem.h"

namespace qkv {

/// Rows [first_row, first_row + rows) of one head: what one worker does at a time.
struct RowItem {
  int64_t b = 0;
  int64_t h = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

/// Cuts all rows into items of at most `largest` rows, a multiple of 6; smaller ones, in halves, until every worker has
/// several. Heads follow each other, so that workers meet the packed keys of a head together; within a head later rows
/// come first, which under a causal mask cost the most.
std::vector<RowItem> cut_rows(const Problem& problem, int64_t largest, int workers);

/// Multiply-adds of the problem's visible ranges, for deciding how many workers it is worth.
double visible_work(const Problem& problem);

/// Threads worth starting: one for work that takes less than a few times a fork and join.
int useful_threads(const Problem& problem, double work);

}  // namespace qkv
