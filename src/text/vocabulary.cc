// SPDX-License-Identifier: Apache-2.0
#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace qkv::text {

size_t Vocabulary::slot(std::string_view token, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    const Entry& entry = entries_[slots_[at] - 1];
    if (entry.hash == hash && token_of(entry) == token) break;
  }
  return at;
}

void Vocabulary::grow(size_t slots) {
  slots_.assign(slots, 0);
  for (size_t n = 0; n < entries_.size(); ++n) {
    slots_[slot(token_of(entries_[n]), entries_[n].hash)] = static_cast<uint32_t>(n + 1);  // of equal ones the last
  }
}

void Vocabulary::reserve(size_t tokens) {
  entries_.reserve(tokens);
  if (const size_t wanted = std::bit_ceil(2 * tokens + 2); wanted > slots_.size()) grow(wanted);
}

uint32_t& Vocabulary::place(std::string_view token, uint64_t hash) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow(std::max<size_t>(16, 2 * slots_.size()));
  return slots_[slot(token, hash)];
}

void Vocabulary::append(std::string_view token, uint32_t id, uint64_t hash) {
  entries_.push_back({bytes_.size(), static_cast<uint32_t>(token.size()), id, hash});
  bytes_ += token;
}

bool Vocabulary::add(std::string_view token, uint32_t id) {
  const uint64_t hash = hash_bytes(token);
  uint32_t& number = place(token, hash);
  if (number != 0) return false;
  number = static_cast<uint32_t>(entries_.size() + 1);
  append(token, id, hash);
  return true;
}

void Vocabulary::replace(std::string_view token, uint32_t id) {
  const uint64_t hash = hash_bytes(token);
  place(token, hash) = static_cast<uint32_t>(entries_.size() + 1);
  append(token, id, hash);
}

std::optional<uint32_t> Vocabulary::id(std::string_view token) const {
  if (slots_.empty()) return {};
  const uint32_t place = slots_[slot(token, hash_bytes(token))];
  if (place == 0) return {};
  return entries_[place - 1].id;
}

void Vocabulary::index_ids() {
  by_id_.resize(entries_.size());
  std::iota(by_id_.begin(), by_id_.end(), 0);
  std::stable_sort(by_id_.begin(), by_id_.end(),
                   [&](uint32_t a, uint32_t b) { return entries_[a].id < entries_[b].id; });
}

std::optional<std::string_view> Vocabulary::token(uint32_t id) const {
  const auto place = std::upper_bound(by_id_.begin(), by_id_.end(), id,
                                      [&](uint32_t wanted, uint32_t n) { return wanted < entries_[n].id; });
  if (place == by_id_.begin() || entries_[*(place - 1)].id != id) return {};
  return token_of(entries_[*(place - 1)]);
}

}  // namespace qkv::text
