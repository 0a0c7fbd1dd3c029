// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::text {

/// A hash of bytes, eight at a time.
inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t hash = bytes.size() * kFactor;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t eight;
    std::memcpy(&eight, at, 8);
    hash = (hash ^ eight) * kFactor;
    hash ^= hash >> 32;
  }
  uint64_t rest = 0;
  for (size_t n = 0; n < left; ++n) rest = rest << 8 | static_cast<unsigned char>(at[n]);
  hash = (hash ^ rest) * kFactor;
  return hash ^ hash >> 29;
}

/// Tokens and their ids, both ways.
class Vocabulary {
 public:
  /// Adds a token; false when it is there already, with whatever id.
  bool add(std::string_view token, uint32_t id);
  /// Adds a token that may be there already: id() gives the new id from now on, token() knows both.
  void replace(std::string_view token, uint32_t id);
  void reserve(size_t tokens);

  size_t size() const { return entries_.size(); }
  std::optional<uint32_t> id(std::string_view token) const;
  /// The token with this id; of several the one added last. Valid after index_ids().
  std::optional<std::string_view> token(uint32_t id) const;
  void index_ids();
  /// The largest id plus one; 0 when there is none. Valid after index_ids().
  uint64_t id_limit() const { return by_id_.empty() ? 0 : uint64_t{entries_[by_id_.back()].id} + 1; }

 private:
  struct Entry {
    uint64_t offset;  ///< of the token in bytes_
    uint32_t length;
    uint32_t id;
    uint64_t hash;
  };
  std::string_view token_of(const Entry& entry) const {
    return std::string_view(bytes_).substr(entry.offset, entry.length);
  }
  size_t slot(std::string_view token, uint64_t hash) const;
  void grow(size_t slots);
  uint32_t& place(std::string_view token, uint64_t hash);
  void append(std::string_view token, uint32_t id, uint64_t hash);

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  ///< number of an entry plus one; a power of two of them, at most half full
  std::vector<uint32_t> by_id_;  ///< numbers of entries, ascending by id
};

}  // namespace qkv::text
