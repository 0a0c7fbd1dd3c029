// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/aligned_text.h"
#include "text/normalizer.h"
#include "text/vocabulary.h"

namespace qkv::text {

/// Tokens of a file that are found in the text before the model sees it: special ones, and words added to a vocabulary.
class AddedTokens {
 public:
  /// Reads the list `added_tokens`. Null normalizer: none.
  AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer* normalizer, const std::string& where);

  /// Splits off the tokens that are looked for in the original, normalizes what is between them, and splits off the
  /// tokens that are looked for there.
  void extract(AlignedText& text, const Normalizer* normalizer) const;

  std::optional<uint32_t> id(const std::string& token) const;
  /// What decoders see of an id: the token as it is found in the text, normalized where it is looked for so.
  std::optional<std::string_view> decoded(uint32_t id) const;
  bool is_special(std::string_view token) const { return special_.count(std::string(token)) != 0; }
  /// The largest id plus one; 0 when there are none.
  uint64_t id_limit() const;

 private:
  struct AddedToken {
    std::string content, pattern;
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
  };
  /// Finds the leftmost and there the longest of several strings.
  class Finder {
   public:
    bool empty() const { return nodes_.size() == 1; }
    /// False when it is there already.
    bool add(std::string_view text, size_t token);
    /// The token found at `at` or later; `*at` becomes where it begins.
    std::optional<size_t> find(std::string_view text, size_t* at) const;

   private:
    struct Node {
      std::unordered_map<char, uint32_t> children;
      std::optional<size_t> token;
    };
    std::optional<size_t> longest_at(std::string_view text) const;
    std::vector<Node> nodes_{1};
    bool starts_[256] = {};
  };

  void read(const Json& item, const Vocabulary& vocabulary, const Normalizer* normalizer, const std::string& where);
  void divide(const AlignedText& text, const Piece& piece, const Finder& finder, std::vector<Piece>& out) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<uint32_t, size_t> by_id_;
  std::unordered_set<std::string> special_;
  Finder in_original_, in_normalized_;
  uint64_t next_id_ = 0;
};

/// How many characters at the front and back of a token are blanks, for the offsets that leave them out.
struct Blanks {
  uint32_t leading = 0, trailing = 0;
};
Blanks blanks_of(std::string_view token);

}  // namespace qkv::text
