// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "text/model.h"

namespace qkv::text {

/// The tokens of words seen before. A word has one place, by its hash; a newer one takes it over. So it never grows
/// beyond its places and one arena, which begins anew when it is full.
class WordCache {
 public:
  /// Longer words are rare and seldom come again.
  static constexpr size_t kLongestWord = 255;

  bool find(std::string_view word, uint64_t hash, std::span<const Token>* tokens) const {
    const Place& place = places_[hash & kMask];
    if (place.hash != hash || place.length != word.size()) return false;
    if (std::string_view(bytes_.data() + place.bytes, place.length) != word) return false;
    *tokens = {tokens_.data() + place.tokens, place.count};
    return true;
  }

  void put(std::string_view word, uint64_t hash, std::span<const Token> tokens) {
    if (word.size() > kLongestWord) return;
    if (bytes_.size() + word.size() > kMostBytes || tokens_.size() + tokens.size() > kMostBytes) {
      places_.assign(kMask + 1, {});
      bytes_.clear();
      tokens_.clear();
    }
    places_[hash & kMask] = {hash, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(tokens_.size()),
                             static_cast<uint32_t>(word.size()), static_cast<uint32_t>(tokens.size())};
    bytes_.insert(bytes_.end(), word.begin(), word.end());
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }

 private:
  // 65,536 words: what a few hundred megabytes of text use often. The arena holds about four times their bytes.
  static constexpr size_t kMask = (1 << 16) - 1;
  static constexpr size_t kMostBytes = 4 << 20;
  struct Place {
    uint64_t hash = 0;
    uint32_t bytes = 0, tokens = 0;  ///< where they begin
    uint32_t length = 0, count = 0;  ///< no word has length 0
  };
  std::vector<Place> places_ = std::vector<Place>(kMask + 1);
  std::vector<char> bytes_;
  std::vector<Token> tokens_;
};

}  // namespace qkv::text
