// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "qkv/attention/attention.h"
#include "qkv/attention/key_value_cache.h"

namespace qkv {

/// One tensor of a problem after the check: four axes, strides in elements, zero along broadcast axes.
struct Operand {
  const char* data = nullptr;
  DType dtype = DType::f32;
  int64_t element_size = 4;
  std::array<int64_t, 4> stride{};

  explicit operator bool() const { return data != nullptr; }
  const void* at(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return data + (b * stride[0] + h * stride[1] + i * stride[2] + c * stride[3]) * element_size;
  }
  void* mutable_at(int64_t b, int64_t h, int64_t i, int64_t c) const { return const_cast<void*>(at(b, h, i, c)); }
};

/// One batch entry, or one packed sequence.
struct Sequence {
  int64_t Tq = 0;
  int64_t Tk = 0;
  int64_t q_begin = 0;  ///< first row of the packed tensors; 0 when not packed
  int64_t k_begin = 0;
  int64_t offset = 0;      ///< key position of query 0
  int64_t key_length = 0;  ///< keys at or beyond it are hidden
  int64_t query_length = 0;
};

/// A checked problem: what the operation means, with every default resolved. Nothing fails after the check.
struct Problem {
  int64_t B = 0, H = 0, Hkv = 0, D = 0, Dv = 0;
  int64_t Tq = 0, Tk = 0;  ///< rows of the tensors; the totals when packed
  bool packed = false;
  DType dtype = DType::f32;
  std::vector<Sequence> sequences;  ///< one per batch entry

  const KeyValueCache::Storage* cache = nullptr;  ///< where keys and values are; then k and v are absent
  Operand q, k, v;  ///< (b, h, row, column); b's stride is 0 when packed and rows count through all sequences
  double scale = 1;
  double softcap = 0;
  bool causal = false;
  std::optional<int64_t> window_left, window_right;

  Operand bias, mask;     ///< (b, h, i, j)
  Operand slopes, sinks;  ///< (-, h, -, -)
  Operand table;          ///< (-, h, -, bucket)
  int64_t table_buckets = 0;
  Buckets buckets;
  Operand query_segment;  ///< (b, -, i, -)
  Operand key_segment;    ///< (b, -, -, j)
  Operand block_mask;     ///< (b, h, block of i, block of j)
  BlockShape block;

  double dropout = 0;
  uint64_t seed = 0;
  int threads = 0;

  /// Rows of one head in state arrays: index of (b, h, i) is row_index(b, h) + i * row_step().
  int64_t row_index(int64_t b, int64_t h) const {
    return packed ? sequences[static_cast<size_t>(b)].q_begin * H + h : (b * H + h) * Tq;
  }
  int64_t row_step() const { return packed ? H : 1; }
  int64_t rows() const { return packed ? Tq * H : B * H * Tq; }
  int64_t kv_head(int64_t h) const { return h / (H / Hkv); }
  int64_t group() const { return Hkv == 0 ? 0 : H / Hkv; }
  bool is_f64() const { return dtype == DType::f64; }

  const Sequence& sequence(int64_t b) const { return sequences[static_cast<size_t>(b)]; }
};

/// Keys of the longest sequence.
inline int64_t longest_keys(const Problem& problem) {
  int64_t keys = 0;
  for (const Sequence& sequence : problem.sequences) keys = sequence.Tk > keys ? sequence.Tk : keys;
  return keys;
}

}  // namespace qkv
