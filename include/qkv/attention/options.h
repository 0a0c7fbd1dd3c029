// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "qkv/tensor/view.h"

namespace qkv {

/// Which keys a query at position i may see under a causal mask, when there are Tk - Tq more keys than queries.
/// There is no default alignment: say top_left or bottom_right (with Tq == Tk they are the same).
class Causal {
 public:
  enum class Kind : uint8_t { none, top_left, bottom_right, offset, offsets };
  Causal() = default;
  static Causal top_left() { return Causal(Kind::top_left, 0); }
  static Causal bottom_right() { return Causal(Kind::bottom_right, 0); }
  /// j <= i + offset; may be negative.
  static Causal with_offset(int64_t offset) { return Causal(Kind::offset, offset); }
  /// j <= i + AttentionOptions::offsets[b].
  static Causal with_offsets() { return Causal(Kind::offsets, 0); }
  Kind kind() const { return kind_; }
  int64_t offset() const { return offset_; }
  explicit operator bool() const { return kind_ != Kind::none; }

 private:
  Causal(Kind kind, int64_t offset) : kind_(kind), offset_(offset) {}
  Kind kind_ = Kind::none;
  int64_t offset_ = 0;
};

/// Query i sees keys i + offset - left ... i + offset + right; a missing side is unbounded.
struct Window {
  std::optional<int64_t> left = {};
  std::optional<int64_t> right = {};
  explicit operator bool() const { return left.has_value() || right.has_value(); }
};

/// How a relative table turns a distance into one of its buckets: T5's rule.
struct Buckets {
  enum class Kind : uint8_t { bidirectional, causal };
  Kind kind = Kind::bidirectional;
  int64_t max_distance = 128;
};

/// Sides of the blocks that AttentionOptions::block_mask lists.
struct BlockShape {
  int64_t queries = 0;
  int64_t keys = 0;
};

/// Everything that shapes the operation. Shapes: B batch, H query heads, Hkv key/value heads, Tq queries, Tk keys.
/// With packed sequences (query_starts, key_starts) B is the number of sequences. Absent views are off.
struct AttentionOptions {
  std::optional<double> scale = {};  ///< default 1/sqrt(D), 1 when D == 0
  double softcap = 0;                ///< 0 is off
  Causal causal = {};
  Window window = {};
  int64_t offset = 0;       ///< key position of query 0, for window, slopes, table and dropout without a causal mask
  TensorView offsets = {};  ///< [B] i64 or i32: the same per batch entry, with Causal::with_offsets() or without causal

  TensorView bias = {};    ///< [B|1, H|1, Tq|1, Tk|1], dtype of q or f32; added after the soft-cap; -inf hides
  TensorView slopes = {};  ///< [H] f32 (f64): ALiBi
  TensorView table = {};   ///< [H, buckets] f32 (f64)
  Buckets buckets = {};
  TensorView sinks = {};  ///< [H] f32 (f64): logits that join the denominator

  TensorView mask = {};           ///< [B|1, H|1, Tq|1, Tk|1] bool or u8, nonzero is visible
  TensorView key_lengths = {};    ///< [B] i64 or i32
  TensorView query_lengths = {};  ///< [B]
  TensorView query_segment = {};  ///< [B, Tq] i64 or i32
  TensorView key_segment = {};    ///< [B, Tk]
  TensorView block_mask = {};     ///< [B|1, H|1, ceil(Tq/queries), ceil(Tk/keys)] bool or u8
  BlockShape block = {};

  TensorView query_starts = {};  ///< [S + 1] cumulative; then q is [total_q, H, D], k and v likewise
  TensorView key_starts = {};    ///< [S + 1]

  double dropout = 0;                 ///< in [0, 1)
  std::optional<uint64_t> seed = {};  ///< needed with dropout
  int threads = 0;                    ///< 0: all CPUs the process may use
};

}  // namespace qkv
