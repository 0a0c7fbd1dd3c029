// SPDX-License-Identifier: Apache-2.0
// SentencePiece's map of strings: a double-array trie of bytes whose leaves point into a text of replacements, each
// ended by NUL. In base64: the trie's size in bytes as u32, its units as u32, the text.
//
// The package `tokenizers` looks up a whole grapheme cluster if that has fewer than 6 bytes, and takes the shortest
// beginning found for all of it; otherwise, and if there is none, it looks up each character.
#include <utility>

#include "qkv/support/error.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

std::string from_base64(const std::string& text, const std::string& where) {
  const auto value = [](char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  require(text.size() % 4 == 0, where, ": precompiled_charsmap: expected base64, got ", text.size(),
          " characters, not a multiple of 4");
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const int padding = !last || text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
    uint32_t group = 0;
    for (size_t n = 0; n < 4; ++n) {
      const int digit = n >= static_cast<size_t>(4 - padding) ? 0 : value(text[at + n]);
      require(digit >= 0, where, ": precompiled_charsmap: expected base64, got a byte that is none at ", at + n);
      group = group << 6 | static_cast<uint32_t>(digit);
    }
    for (int n = 0; n < 3 - padding; ++n) bytes += static_cast<char>(group >> (16 - 8 * n) & 0xFF);
  }
  return bytes;
}

uint32_t little_endian(const std::string& bytes, size_t at) {
  uint32_t result = 0;
  for (size_t n = 4; n-- > 0;) result = result << 8 | static_cast<unsigned char>(bytes[at + n]);
  return result;
}

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(JsonFields& fields) : where_(fields.where() + ": precompiled_charsmap") {
    const std::string bytes = from_base64(fields.string("precompiled_charsmap"), fields.where());
    require(bytes.size() >= 8, where_, ": expected a trie and a text, got ", bytes.size(), " bytes");
    const uint32_t units = little_endian(bytes, 0) / 4;
    require(units >= 1 && units <= (bytes.size() - 4) / 4, where_, ": expected a trie of ", units, " units, got ",
            bytes.size() - 4, " bytes");
    for (uint32_t n = 0; n < units; ++n) trie_.push_back(little_endian(bytes, 4 + 4 * size_t{n}));
    text_ = bytes.substr(4 + 4 * size_t{units});
    require(utf8_first_invalid(text_) == std::string::npos, where_, ": the replacements are not valid UTF-8");
  }

  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) { write(editor); });
  }

 private:
  void write(TextEditor& editor) const {
    std::vector<Change> changes;
    bool modified = false;
    const auto replace = [&](std::string_view part) {
      std::string_view with;
      if (!find(part, &with)) return false;
      modified = true;
      add(changes, static_cast<int>(utf8_count(part)), with);
      return true;
    };
    GraphemeClusters clusters(editor.text());
    for (std::string_view cluster; clusters.next(&cluster);) {
      if (cluster.size() < 6 && replace(cluster)) continue;
      for_each_character(cluster, [&](size_t at, char32_t c) {
        if (!replace(cluster.substr(at, utf8_length(cluster[at])))) changes.push_back({c, 0});
      });
    }
    if (!modified) return editor.copy();
    editor.begin();
    for (const Change& change : changes) editor.put(change.character, change.change);
    editor.end();
  }

  /// New characters count as replacing the old ones, then as added. When there are fewer, the last one so far, even of
  /// another replacement, takes the rest with it.
  static void add(std::vector<Change>& changes, int old_count, std::string_view with) {
    int count = 0;
    for_each_character(with, [&](size_t, char32_t c) { changes.push_back({c, count++ < old_count ? 0 : 1}); });
    if (count < old_count && !changes.empty()) changes.back().change += count - old_count;
  }

  /// The replacement of the shortest beginning of `part` that has one.
  bool find(std::string_view part, std::string_view* with) const {
    size_t at = offset(trie_[0]);
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return false;
      at ^= byte;
      const uint32_t unit = unit_at(at);
      if ((unit & 0x800000FF) != byte) return false;
      at ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      const size_t begin = unit_at(at) & 0x7FFFFFFF;
      require(begin <= text_.size() && (begin == text_.size() || !utf8_continues(text_[begin])), where_,
              ": a leaf points outside the replacements");
      *with = std::string_view(text_).substr(begin);
      *with = with->substr(0, with->find('\0'));
      return true;
    }
    return false;
  }
  static size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & (1U << 9)) >> 6); }
  uint32_t unit_at(size_t at) const {
    require(at < trie_.size(), where_, ": the trie points outside itself");
    return trie_[at];
  }

  std::string where_;
  std::vector<uint32_t> trie_;
  std::string text_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(JsonFields& fields) { return std::make_unique<Precompiled>(fields); }

}  // namespace qkv::text
