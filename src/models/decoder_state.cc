// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "models/transformer_parts.h"
#include "qkv/support/error.h"

namespace qkv {

DecoderState::DecoderState(std::unique_ptr<Storage> storage) : storage_(std::move(storage)) {}
DecoderState::DecoderState(DecoderState&&) noexcept = default;
DecoderState& DecoderState::operator=(DecoderState&&) noexcept = default;
DecoderState::~DecoderState() = default;

int64_t DecoderState::sequences() const { return storage_->sequences; }

int64_t DecoderState::length(int64_t sequence) const { return storage_->self.front().length(sequence); }

int64_t DecoderState::bytes() const {
  int64_t bytes = 0;
  for (const auto* caches : {&storage_->self, &storage_->cross}) {
    for (const KeyValueCache& cache : *caches) bytes += cache.bytes();
  }
  return bytes;
}

void DecoderState::truncate(int64_t sequence, int64_t length) {
  for (KeyValueCache& cache : storage_->self) cache.truncate(sequence, length);
}

void DecoderState::share_prefix(int64_t from, int64_t to, int64_t length) {
  for (KeyValueCache& cache : storage_->self) cache.share_prefix(from, to, length);
  for (KeyValueCache& cache : storage_->cross) cache.share_prefix(from, to, cache.length(from));
}

void DecoderState::reorder(const std::vector<int64_t>& from) {
  for (auto* caches : {&storage_->self, &storage_->cross}) {
    for (KeyValueCache& cache : *caches) cache.reorder(from);
  }
  storage_->sequences = static_cast<int64_t>(from.size());
}

}  // namespace qkv
