// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "qkv/attention/options.h"

namespace qkv {

/// The keys and values that one attention layer has seen, for some sequences of different lengths, in the order in
/// which the kernels read them: so that decoding one query reads each of them once, as stored, and nothing is packed
/// again. A model keeps one for each layer.
///
/// Memory is handed out in blocks of a few hundred keys (all heads of a sequence), which sequences share until one of
/// them writes to its own: a common prefix is held once, and reordering beams moves no keys. Elements take the bytes of
/// their dtype, rows of values and odd widths of narrow keys are rounded up to whole vectors and pairs.
///
/// Calls that change a cache must not run at the same time as any other call on it; attention on it may, from any
/// number of threads. A cache belongs to the instruction set in use when it was made.
///
/// A wrong call throws Error and leaves the cache as it was; so does a call that finds no memory (MemoryError or
/// std::bad_alloc).
class KeyValueCache {
 public:
  /// `sequences` empty sequences. `dtype`: f64, f32, bf16 or f16, that of q, k, v and out.
  KeyValueCache(int64_t sequences, int64_t kv_heads, int64_t D, int64_t Dv, DType dtype);
  KeyValueCache(KeyValueCache&& other) noexcept;
  KeyValueCache& operator=(KeyValueCache&& other) noexcept;
  KeyValueCache(const KeyValueCache&) = delete;
  KeyValueCache& operator=(const KeyValueCache&) = delete;
  ~KeyValueCache();

  int64_t sequences() const;
  int64_t kv_heads() const;
  int64_t D() const;
  int64_t Dv() const;
  DType dtype() const;
  int64_t length(int64_t sequence) const;  ///< keys
  int64_t longest() const;                 ///< keys of the longest sequence
  int64_t bytes() const;                   ///< memory of keys and values; what sequences share counts once

  /// Adds keys k [sequences, kv_heads, T, D] and values v [sequences, kv_heads, T, Dv], of any strides, at the end of
  /// every sequence: of sequence b the first lengths[b] of the T, where `lengths` [sequences] (i64 or i32) is given.
  void append(const TensorView& k, const TensorView& v, const TensorView& lengths = {});
  /// The same for one sequence: k [kv_heads, T, D], v [kv_heads, T, Dv].
  void append(int64_t sequence, const TensorView& k, const TensorView& v);
  /// Forgets the keys of a sequence from `length` on.
  void truncate(int64_t sequence, int64_t length);
  /// Sequence `to` forgets what it holds and begins with the first `length` keys of `from`.
  void share_prefix(int64_t from, int64_t to, int64_t length);
  /// Sequence b becomes what sequence from[b] was; there are from.size() sequences after it.
  void reorder(const std::vector<int64_t>& from);

  struct Storage;
  const Storage& storage() const { return *storage_; }

 private:
  std::unique_ptr<Storage> storage_;
};

/// attention_forward of every sequence on its own keys: the same bits as on tensors that hold the keys of that sequence
/// alone. q [B, H, Tq, D] with B the cache's sequences, out [B, H, Tq, Dv], lse [B, H, Tq] or absent; with one sequence
/// also rank 3. H is a multiple of kv_heads.
///
/// Tk is each sequence's own length, for Causal::bottom_right() and for lengths too; tensors that have an axis of keys
/// (bias, mask, key_segment, block_mask) have longest() of them, of which a sequence reads its own. Queries of
/// sequences that have fewer than Tq are left out by query_lengths; then their offsets say where they stand. Packed
/// sequences are refused. Outputs must not overlap q, each other or themselves. Throws as attention_forward.
void attention_forward(const TensorView& q, const KeyValueCache& cache, const AttentionOptions& options,
                       const MutableTensorView& out, const MutableTensorView& lse = {});

}  // namespace qkv
