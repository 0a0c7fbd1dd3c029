// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding: characters, merged pair by pair, the pair of the lowest rank first and of equal ones the
// leftmost. A heap holds the pairs that could merge; one that meanwhile lost a part is recognised when it comes up. n
// characters cost n log n.
#include <algorithm>
#include <array>
#include <bit>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/model.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

/// What pairs of tokens merge to, by rank.
class MergeTable {
 public:
  struct Found {
    uint32_t rank, id;
  };
  explicit MergeTable(size_t merges) : slots_(std::bit_ceil(2 * merges + 2)) {}

  void set(uint32_t first, uint32_t second, Found found) {
    Slot& slot = slots_[place(first, second)];
    slot = {first, second, found, true};
  }
  const Found* find(uint32_t first, uint32_t second) const {
    const Slot& slot = slots_[place(first, second)];
    return slot.used ? &slot.found : nullptr;
  }

 private:
  struct Slot {
    uint32_t first = 0, second = 0;
    Found found{};
    bool used = false;
  };
  size_t place(uint32_t first, uint32_t second) const {
    const uint64_t key = (uint64_t{first} << 32 | second) * 0x9E3779B97F4A7C15;
    const size_t mask = slots_.size() - 1;
    size_t at = (key ^ key >> 32) & mask;
    while (slots_[at].used && (slots_[at].first != first || slots_[at].second != second)) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

class Bpe : public Model {
 public:
  Bpe(TokenizerJson& json, JsonFields& fields) : merges_(json.merges.size()) {
    const std::string& where = fields.where();
    if (fields.has("dropout")) {
      const Json& dropout = fields.any("dropout");
      require(dropout.is_number() && dropout.get<double>() == 0, where, ": dropout: expected null, got ",
              shown(dropout), "; an encoding that is random is not supported");
    }
    fields.ignore("dropout");
    prefix_ = optional_string(fields, "continuing_subword_prefix");
    suffix_ = optional_string(fields, "end_of_word_suffix");
    fuse_unknown_ = optional_boolean(fields, "fuse_unk");
    byte_fallback_ = optional_boolean(fields, "byte_fallback");
    ignore_merges_ = optional_boolean(fields, "ignore_merges");
    require(json.has_merges, where, ": expected the key \"merges\"");
    vocabulary_ = make_vocabulary(json, where);
    unknown_token_ = optional_string(fields, "unk_token");
    has_unknown_ = fields.has("unk_token");
    if (has_unknown_) unknown_ = vocabulary_.id(unknown_token_);
    for (size_t byte = 0; byte < 256; ++byte)
      bytes_[byte] = vocabulary_.id(byte_token(static_cast<unsigned char>(byte)));
    add_merges(json, where);
  }

  void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const override {
    if (ignore_merges_) {
      if (const auto id = vocabulary_.id(piece)) return out.push_back({*id, 0, static_cast<uint32_t>(piece.size())});
    }
    scratch.symbols.clear();
    split(piece, scratch);
    merge(scratch);
    uint32_t at = 0;
    for (const ModelScratch::Symbol& symbol : scratch.symbols) {
      if (symbol.length == 0) continue;
      out.push_back({symbol.id, at, at + symbol.length});
      at += symbol.length;
    }
  }

 private:
  static std::string optional_string(JsonFields& fields, const char* key) {
    if (fields.has(key)) return fields.string(key);
    fields.ignore(key);
    return {};
  }
  static bool optional_boolean(JsonFields& fields, const char* key) {
    if (fields.has(key)) return fields.boolean(key);
    fields.ignore(key);
    return false;
  }

  void add_merges(TokenizerJson& json, const std::string& where) {
    const auto known = [&](const std::string& token) {
      const auto id = vocabulary_.id(token);
      require(id.has_value(), where, ": merges: the token ", in_quotes(token), " is not in the vocabulary");
      return *id;
    };
    require(json.merges.size() < (uint64_t{1} << 32), where, ": merges: too many");
    uint32_t rank = 0;
    for (const auto& [first, second] : json.merges) {
      require(second.size() >= prefix_.size(), where, ": merges: the token ", in_quotes(second),
              " is shorter than continuing_subword_prefix");
      const uint32_t a = known(first), b = known(second);
      merges_.set(a, b, {rank++, known(first + second.substr(prefix_.size()))});
    }
    json.merges = {};
  }

  static void add(ModelScratch& scratch, uint32_t id, size_t length) {
    const auto count = static_cast<int32_t>(scratch.symbols.size());
    if (count > 0) scratch.symbols.back().next = count;
    scratch.symbols.push_back({id, count - 1, -1, static_cast<uint32_t>(length)});
  }

  /// The characters of a piece as symbols.
  void split(std::string_view piece, ModelScratch& scratch) const {
    size_t unknown_length = 0;  // of unknown characters seen and not yet added
    for (size_t at = 0; at < piece.size();) {
      const size_t length = utf8_length(piece[at]);
      std::string_view character = piece.substr(at, length);
      const bool first = at == 0, last = at + length == piece.size();
      at += length;
      if ((!first && !prefix_.empty()) || (last && !suffix_.empty())) {
        scratch.word.assign(first ? "" : prefix_).append(character).append(last ? suffix_ : "");
        character = scratch.word;
      }
      if (const auto id = vocabulary_.id(character)) {
        if (unknown_length > 0) add(scratch, *unknown_, unknown_length);
        unknown_length = 0;
        add(scratch, *id, length);
      } else if (!(byte_fallback_ && add_bytes(character, scratch)) && has_unknown_) {
        require(unknown_.has_value(), "tokenizer: the unknown token ", in_quotes(unknown_token_),
                " is not in the vocabulary");
        if (unknown_length > 0 && !fuse_unknown_) {
          add(scratch, *unknown_, unknown_length);
          unknown_length = 0;
        }
        unknown_length += length;
      }
    }
    if (unknown_length > 0) add(scratch, *unknown_, unknown_length);
  }

  bool add_bytes(std::string_view character, ModelScratch& scratch) const {
    for (const char byte : character) {
      if (!bytes_[static_cast<unsigned char>(byte)]) return false;
    }
    for (const char byte : character) add(scratch, *bytes_[static_cast<unsigned char>(byte)], 1);
    return true;
  }

  void merge(ModelScratch& scratch) const {
    using Merge = ModelScratch::Merge;
    auto& symbols = scratch.symbols;
    auto& heap = scratch.merges;
    const auto later = [](const Merge& a, const Merge& b) { return a.rank != b.rank ? a.rank > b.rank : a.at > b.at; };
    const auto offer = [&](int32_t left, int32_t right) {
      const auto* found = merges_.find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
      if (found != nullptr) heap.push_back({found->rank, static_cast<uint32_t>(left), found->id});
      return found != nullptr;
    };
    heap.clear();
    for (size_t n = 1; n < symbols.size(); ++n) offer(static_cast<int32_t>(n - 1), static_cast<int32_t>(n));
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), later);
      const Merge top = heap.back();
      heap.pop_back();
      ModelScratch::Symbol& left = symbols[top.at];
      if (left.length == 0 || left.next < 0) continue;
      ModelScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
      const auto* found = merges_.find(left.id, right.id);
      if (found == nullptr || found->id != top.id) continue;  // a part of it went into another
      left.id = top.id;
      left.length += right.length;
      left.next = right.next;
      right.length = 0;
      const auto at = static_cast<int32_t>(top.at);
      if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = at;
      if (left.previous >= 0 && offer(left.previous, at)) std::push_heap(heap.begin(), heap.end(), later);
      if (left.next >= 0 && offer(at, left.next)) std::push_heap(heap.begin(), heap.end(), later);
    }
  }

  std::string prefix_, suffix_, unknown_token_;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false, has_unknown_ = false;
  std::optional<uint32_t> unknown_;
  std::array<std::optional<uint32_t>, 256> bytes_;  ///< tokens of byte fallback
  MergeTable merges_;
};

}  // namespace

std::unique_ptr<Model> make_bpe(TokenizerJson& json, JsonFields& fields) { return std::make_unique<Bpe>(json, fields); }

}  // namespace qkv::text
