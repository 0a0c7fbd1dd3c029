// SPDX-License-Identifier: Apache-2.0
//
// Blocks of packed keys and values, counted by reference. Only the last block of a sequence is ever written: a shared
// one is copied first. It grows by doubling up to a whole block, so that short sequences take little memory.
#include "qkv/attention/key_value_cache.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "attention/check_view.h"
#include "attention/key_value_storage.h"
#include "attention/tiling.h"
#include "qkv/support/checked.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

using Storage = KeyValueCache::Storage;

constexpr int64_t kFirstCapacity = 64;  // keys

std::shared_ptr<KeyValueBlock> make_block(const Storage& storage, int64_t capacity) {
  auto block = std::make_shared<KeyValueBlock>();
  block->capacity = capacity;
  const int64_t key = checked_multiply(storage.kv_heads, storage.key_bytes() + storage.value_bytes(), "cache");
  block->memory = AlignedArray<char>(checked_multiply(capacity, key, "cache"));
  return block;
}

/// A block of its own with room for `capacity` keys that holds the first `keys` of another.
std::shared_ptr<KeyValueBlock> copy_block(const Storage& storage, const KeyValueBlock& block, int64_t keys,
                                          int64_t capacity) {
  auto copy = make_block(storage, capacity);
  const int64_t panels = round_up(keys, storage.panel_width);
  for (int64_t head = 0; head < storage.kv_heads; ++head) {
    std::memcpy(storage.keys(*copy, head), storage.keys(block, head),
                static_cast<size_t>(panels * storage.key_bytes()));
    std::memcpy(storage.values(*copy, head), storage.values(block, head),
                static_cast<size_t>(keys * storage.value_bytes()));
  }
  return copy;
}

/// Room for `needed` keys: the smallest doubling of the first capacity, at most a block.
int64_t capacity_for(const Storage& storage, int64_t needed) {
  int64_t capacity = round_up(std::min(kFirstCapacity, storage.block_keys), storage.panel_width);
  while (capacity < needed) capacity *= 2;
  return std::min(capacity, storage.block_keys);
}

/// Blocks that a sequence needs to be written up to `length`: the new ones, and the last one where it is shared or
/// small. Nothing of the sequence has changed yet.
std::vector<std::shared_ptr<KeyValueBlock>> writable_blocks(const Storage& storage, const Storage::Sequence& sequence,
                                                            int64_t length) {
  std::vector<std::shared_ptr<KeyValueBlock>> blocks = sequence.blocks;
  const int64_t held = sequence.length % storage.block_keys;
  const int64_t last = sequence.length / storage.block_keys;  // the block that is written first
  if (held > 0) {
    const int64_t needed = std::min(length - last * storage.block_keys, storage.block_keys);
    auto& block = blocks[static_cast<size_t>(last)];
    if (sequence.blocks[static_cast<size_t>(last)].use_count() > 2 || block->capacity < needed) {
      block = copy_block(storage, *block, held, capacity_for(storage, needed));
    }
  }
  while (static_cast<int64_t>(blocks.size()) * storage.block_keys < length) {
    const int64_t needed = length - static_cast<int64_t>(blocks.size()) * storage.block_keys;
    blocks.push_back(make_block(storage, capacity_for(storage, std::min(needed, storage.block_keys))));
  }
  return blocks;
}

/// `count` stored keys to panels, from key `at` of the block on. E: an element's bits.
template <class E>
void write_keys(const Storage& storage, const Operand& k, int64_t b, int64_t head, int64_t from, int64_t at,
                int64_t count, char* panels) {
  constexpr int64_t kParts = sizeof(E) == 2 ? 2 : 1;  // elements of a word; a constant, or each would be divided by it
  const int64_t W = storage.panel_width;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t lane = (at + n) % W;
    E* out = reinterpret_cast<E*>(panels) + ((at + n - lane) * storage.words + lane) * kParts;
    const E* in = static_cast<const E*>(k.at(b, head, from + n, 0));
    if (storage.D % kParts != 0) out[storage.words * W * kParts - W * kParts + 1] = E{0};
    for (int64_t c = 0; c < storage.D; ++c) out[c / kParts * W * kParts + c % kParts] = in[c * k.stride[3]];
  }
}

template <class E>
void write_values(const Storage& storage, const Operand& v, int64_t b, int64_t head, int64_t from, int64_t count,
                  char* rows) {
  E* out = reinterpret_cast<E*>(rows);
  for (int64_t n = 0; n < count; ++n, out += storage.value_stride) {
    const E* in = static_cast<const E*>(v.at(b, head, from + n, 0));
    for (int64_t c = 0; c < storage.Dv; ++c) out[c] = in[c * v.stride[3]];
  }
}

template <class E>
void write_sequence(const Storage& storage, Storage::Sequence& sequence, const Operand& k, const Operand& v, int64_t b,
                    int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = sequence.length % storage.block_keys;
    const KeyValueBlock& block = *sequence.blocks[static_cast<size_t>(sequence.length / storage.block_keys)];
    const int64_t part = std::min(count - done, storage.block_keys - at);
    for (int64_t head = 0; head < storage.kv_heads; ++head) {
      write_keys<E>(storage, k, b, head, done, at, part, storage.keys(block, head));
      write_values<E>(storage, v, b, head, done, part, storage.values(block, head) + at * storage.value_bytes());
    }
    done += part;
    sequence.length += part;
  }
}

void check_new(const Storage& storage, const TensorView& k, const TensorView& v, const Dims& outer) {
  const auto check = [&](const TensorView& view, const char* name, int64_t width, int64_t keys) {
    check_memory(view, name);
    check_dtype(view, name, storage.dtype);
    Dims expected = outer;
    for (const int64_t size : {storage.kv_heads, keys, width}) expected.push_back(size);
    require(view.shape() == expected, "cache: ", name, " must be ", expected, ", got ", view.shape());
  };
  require(static_cast<bool>(k) && k.rank() == outer.rank() + 3, "cache: k must have ", outer.rank() + 3, " axes");
  check(k, "k", storage.D, k.size(outer.rank() + 1));
  check(v, "v", storage.Dv, k.size(outer.rank() + 1));
}

void check_sequence(const Storage& storage, int64_t sequence, const char* name) {
  const auto count = static_cast<int64_t>(storage.sequences.size());
  require(sequence >= 0 && sequence < count, "cache: ", name, " ", sequence, " is none of its ", count);
}

/// Adds counts[n] keys to sequence first + n.
void append_counts(Storage& storage, const TensorView& k, const TensorView& v, int64_t first,
                   const std::vector<int64_t>& counts) {
  const auto sequence = [&](size_t n) -> Storage::Sequence& {
    return storage.sequences[static_cast<size_t>(first) + n];
  };
  std::vector<std::vector<std::shared_ptr<KeyValueBlock>>> blocks;
  for (size_t n = 0; n < counts.size(); ++n) {
    const int64_t length = checked_add(sequence(n).length, counts[n], "cache");
    require(length <= kLargestPosition, "cache: sequence ", first + static_cast<int64_t>(n), " grows beyond 2^60 keys");
    blocks.push_back(writable_blocks(storage, sequence(n), length));
  }
  const Operand new_k = make_operand(k);
  const Operand new_v = make_operand(v);
  for (size_t n = 0; n < counts.size(); ++n) {
    sequence(n).blocks.swap(blocks[n]);
    const auto b = static_cast<int64_t>(n);
    switch (size_of(storage.dtype)) {
      case 8: write_sequence<uint64_t>(storage, sequence(n), new_k, new_v, b, counts[n]); break;
      case 4: write_sequence<uint32_t>(storage, sequence(n), new_k, new_v, b, counts[n]); break;
      default: write_sequence<uint16_t>(storage, sequence(n), new_k, new_v, b, counts[n]); break;
    }
  }
}

/// A sequence that begins as another and shares its blocks.
Storage::Sequence prefix(const Storage& storage, const Storage::Sequence& sequence, int64_t length) {
  const auto blocks = static_cast<std::ptrdiff_t>(ceil_divide(length, storage.block_keys));
  return {length, {sequence.blocks.begin(), sequence.blocks.begin() + blocks}};
}

}  // namespace

KeyValueCache::KeyValueCache(int64_t sequences, int64_t kv_heads, int64_t D, int64_t Dv, DType dtype)
    : storage_(std::make_unique<Storage>()) {
  require(is_floating(dtype), "cache: dtype must be f64, f32, bf16 or f16, got ", name(dtype));
  require(sequences >= 0 && sequences <= kLargestPosition, "cache: ", sequences, " sequences");
  require(kv_heads >= 0 && kv_heads <= kLargestPosition, "cache: ", kv_heads, " key/value heads");
  require(D >= 0 && D <= kLargestWidth, "cache: D is ", D, ", outside 0..2^48");
  require(Dv >= 0 && Dv <= kLargestWidth, "cache: Dv is ", Dv, ", outside 0..2^48");
  Storage& storage = *storage_;
  const bool is_wide = dtype == DType::f64;
  const bool is_narrow = size_of(dtype) == 2;
  storage.set = &qkv::kernels();
  storage.dtype = dtype;
  storage.kv_heads = kv_heads;
  storage.D = D;
  storage.Dv = Dv;
  storage.block_keys = forward_key_block(D, Dv, static_cast<int64_t>(is_wide ? sizeof(double) : sizeof(float)));
  storage.panel_width = is_wide ? storage.set->f64->panel_width : storage.set->f32->panel_width;
  storage.value_stride = round_up(Dv, is_wide ? storage.set->f64->lanes : storage.set->f32->lanes);
  storage.words = is_narrow ? ceil_divide(D, 2) : D;
  storage.word_size = is_wide ? 8 : 4;
  storage.sequences.resize(static_cast<size_t>(sequences));
}

KeyValueCache::KeyValueCache(KeyValueCache&&) noexcept = default;
KeyValueCache& KeyValueCache::operator=(KeyValueCache&&) noexcept = default;
KeyValueCache::~KeyValueCache() = default;

int64_t KeyValueCache::sequences() const { return static_cast<int64_t>(storage_->sequences.size()); }
int64_t KeyValueCache::kv_heads() const { return storage_->kv_heads; }
int64_t KeyValueCache::D() const { return storage_->D; }
int64_t KeyValueCache::Dv() const { return storage_->Dv; }
DType KeyValueCache::dtype() const { return storage_->dtype; }

int64_t KeyValueCache::length(int64_t sequence) const {
  check_sequence(*storage_, sequence, "sequence");
  return storage_->sequences[static_cast<size_t>(sequence)].length;
}

int64_t KeyValueCache::longest() const {
  int64_t keys = 0;
  for (const Storage::Sequence& sequence : storage_->sequences) keys = std::max(keys, sequence.length);
  return keys;
}

int64_t KeyValueCache::bytes() const {
  std::unordered_set<const KeyValueBlock*> seen;
  int64_t keys = 0;
  for (const Storage::Sequence& sequence : storage_->sequences) {
    for (const auto& block : sequence.blocks) keys += seen.insert(block.get()).second ? block->capacity : 0;
  }
  return keys * storage_->kv_heads * (storage_->key_bytes() + storage_->value_bytes());
}

void KeyValueCache::append(const TensorView& k, const TensorView& v, const TensorView& lengths) {
  check_new(*storage_, k, v, {sequences()});
  std::vector<int64_t> counts(static_cast<size_t>(sequences()), k.size(2));
  if (lengths) {
    check_shape(lengths, "lengths", {sequences()});
    check_dtype(lengths, "lengths", DType::i64, DType::i32);
    for (int64_t b = 0; b < sequences(); ++b) {
      const int64_t count = integer_at(lengths, b);
      require(count >= 0 && count <= k.size(2), "cache: lengths[", b, "] is ", count, ", outside 0..", k.size(2));
      counts[static_cast<size_t>(b)] = count;
    }
  }
  append_counts(*storage_, k, v, 0, counts);
}

void KeyValueCache::append(int64_t sequence, const TensorView& k, const TensorView& v) {
  check_sequence(*storage_, sequence, "sequence");
  check_new(*storage_, k, v, {});
  append_counts(*storage_, k, v, sequence, {k.size(1)});
}

void KeyValueCache::truncate(int64_t sequence, int64_t length) {
  const int64_t held = this->length(sequence);
  require(length >= 0 && length <= held, "cache: length is ", length, ", sequence ", sequence, " has ", held, " keys");
  Storage::Sequence& cut = storage_->sequences[static_cast<size_t>(sequence)];
  cut.length = length;
  cut.blocks.resize(static_cast<size_t>(ceil_divide(length, storage_->block_keys)));
}

void KeyValueCache::share_prefix(int64_t from, int64_t to, int64_t length) {
  const int64_t held = this->length(from);
  check_sequence(*storage_, to, "sequence");
  require(length >= 0 && length <= held, "cache: length is ", length, ", sequence ", from, " has ", held, " keys");
  storage_->sequences[static_cast<size_t>(to)] =
      prefix(*storage_, storage_->sequences[static_cast<size_t>(from)], length);
}

void KeyValueCache::reorder(const std::vector<int64_t>& from) {
  std::vector<Storage::Sequence> sequences;
  sequences.reserve(from.size());
  for (const int64_t sequence : from) {
    check_sequence(*storage_, sequence, "sequence");
    sequences.push_back(storage_->sequences[static_cast<size_t>(sequence)]);
  }
  storage_->sequences.swap(sequences);
}

}  // namespace qkv
