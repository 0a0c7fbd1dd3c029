// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/problem.h"
#include "qkv/support/random.h"

namespace qkv {

/// r_j of one row: 1/(1-p) for kept keys, 0 for dropped ones; 1 without dropout.
class RowDropout {
 public:
  RowDropout(const Problem& problem, int64_t b, int64_t h, int64_t i)
      : key_(dropout_row_key(problem.seed, b, h, i + problem.sequence(b).offset)),
        threshold_(dropout_threshold(problem.dropout)),
        keep_(1.0 / (1.0 - problem.dropout)),
        on_(problem.dropout > 0) {}
  double factor(int64_t j) const {
    if (!on_) return 1.0;
    return dropout_bits(key_, j) >= threshold_ ? keep_ : 0.0;
  }
  uint64_t key() const { return key_; }

 private:
  uint64_t key_;
  uint32_t threshold_;
  double keep_;
  bool on_;
};

}  // namespace qkv
