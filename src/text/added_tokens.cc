// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

bool ends_with_word(std::string_view text) {
  size_t begin = 0;
  return !text.empty() && is_any(utf8_before(text, text.size(), &begin), kWord);
}
bool starts_with_word(std::string_view text) { return !text.empty() && is_any(utf8_decode(text.data()), kWord); }

}  // namespace

Blanks blanks_of(std::string_view token) {
  const auto blank = [](char32_t c) { return c == kBlankCharacter || is_white_space(c); };
  Blanks result;
  for (size_t at = 0; at < token.size() && blank(utf8_decode(token.data() + at)); at += utf8_length(token[at])) {
    ++result.leading;
  }
  for (size_t end = token.size(); end > 0 && blank(utf8_before(token, end, &end));) ++result.trailing;
  return result;
}

bool AddedTokens::Finder::add(std::string_view text, size_t token) {
  starts_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto [place, fresh] = nodes_[node].children.try_emplace(byte, static_cast<uint32_t>(nodes_.size()));
    node = place->second;
    if (fresh) nodes_.emplace_back();
  }
  if (nodes_[node].token) return false;
  nodes_[node].token = token;
  return true;
}

std::optional<size_t> AddedTokens::Finder::longest_at(std::string_view text) const {
  std::optional<size_t> found;
  uint32_t node = 0;
  for (const char byte : text) {
    const auto child = nodes_[node].children.find(byte);
    if (child == nodes_[node].children.end()) break;
    node = child->second;
    if (nodes_[node].token) found = nodes_[node].token;
  }
  return found;
}

std::optional<size_t> AddedTokens::Finder::find(std::string_view text, size_t* at) const {
  for (; *at < text.size(); ++*at) {
    if (!starts_[static_cast<unsigned char>(text[*at])]) continue;
    if (const auto token = longest_at(text.substr(*at))) return token;
  }
  return {};
}

AddedTokens::AddedTokens(const Json& list, const Vocabulary& vocabulary, const Normalizer* normalizer,
                         const std::string& where) {
  if (list.is_null()) return;
  require(list.is_array(), where, ": expected a list, got ", shown(list));
  next_id_ = vocabulary.size();
  int number = 0;
  for (const Json& item : list) read(item, vocabulary, normalizer, concat(where, ": ", number++));
  for (size_t n = 0; n < tokens_.size(); ++n) {
    const AddedToken& token = tokens_[n];
    require(!token.pattern.empty(), where, ": nothing is left of ", in_quotes(token.content), " when it is normalized");
    require((token.normalized ? in_normalized_ : in_original_).add(token.pattern, n), where, ": ",
            in_quotes(token.content), " is looked for as ", in_quotes(token.pattern), ", and so is another token");
  }
}

void AddedTokens::read(const Json& item, const Vocabulary& vocabulary, const Normalizer* normalizer,
                       const std::string& where) {
  JsonFields fields(item, where);
  AddedToken token;
  token.content = fields.string("content");
  token.id = fields.integer("id");
  token.single_word = fields.boolean("single_word");
  token.lstrip = fields.boolean("lstrip");
  token.rstrip = fields.boolean("rstrip");
  token.normalized = fields.boolean("normalized");
  token.special = fields.boolean("special");
  fields.done();
  if (token.content.empty()) return;  // nothing to look for
  // The file says the id, but what counts is the vocabulary, and after it the order of the list.
  std::optional<uint32_t> id = vocabulary.id(token.content);
  if (!id) id = static_cast<uint32_t>(next_id_++);
  require(*id == token.id, where, ": ", in_quotes(token.content), ": expected the id ", *id,
          ", by the vocabulary and the tokens before it, got ", token.id);
  require(by_content_.emplace(token.content, tokens_.size()).second, where, ": ", in_quotes(token.content),
          " occurs twice");
  by_id_[token.id] = tokens_.size();
  token.pattern = token.normalized ? normalized(normalizer, token.content) : token.content;
  if (token.special) special_.insert(token.content);
  tokens_.push_back(std::move(token));
}

std::optional<uint32_t> AddedTokens::id(const std::string& token) const {
  const auto place = by_content_.find(token);
  if (place == by_content_.end()) return {};
  return tokens_[place->second].id;
}

std::optional<std::string_view> AddedTokens::decoded(uint32_t id) const {
  const auto place = by_id_.find(id);
  if (place == by_id_.end()) return {};
  return tokens_[place->second].pattern;
}

uint64_t AddedTokens::id_limit() const {
  uint64_t limit = 0;
  for (const AddedToken& token : tokens_) limit = std::max<uint64_t>(limit, uint64_t{token.id} + 1);
  return limit;
}

void AddedTokens::divide(const AlignedText& text, const Piece& piece, const Finder& finder,
                         std::vector<Piece>& out) const {
  const std::string_view whole = text.text(piece);
  const auto slice = [&](size_t begin, size_t end) {
    return text.slice(piece, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
  };
  size_t done = 0;  // what is before it has gone to `out`
  for (size_t at = 0; const auto number = finder.find(whole, &at);) {
    const AddedToken& token = tokens_[*number];
    size_t begin = at, end = at + token.pattern.size();
    at = end;
    if (token.single_word && (ends_with_word(whole.substr(0, begin)) || starts_with_word(whole.substr(end)))) continue;
    if (token.lstrip) {
      for (size_t before = 0; begin > 0 && is_white_space(utf8_before(whole, begin, &before));) begin = before;
      begin = std::max(begin, done);
    }
    while (token.rstrip && end < whole.size() && is_white_space(utf8_decode(whole.data() + end))) {
      end += utf8_length(whole[end]);
    }
    if (done < begin) out.push_back(slice(done, begin));
    Piece found = slice(begin, end);
    found.token = token.id;
    const Blanks blanks = blanks_of(whole.substr(begin, end - begin));
    found.leading = blanks.leading;
    found.trailing = blanks.trailing;
    found.original = text.origin(piece, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
    out.push_back(found);
    done = end;
  }
  if (done < whole.size()) out.push_back(slice(done, whole.size()));
}

void AddedTokens::extract(AlignedText& text, const Normalizer* normalizer) const {
  const auto extract_with = [&](const Finder& finder) {
    if (finder.empty()) return;
    text.split([&](const Piece& piece, std::vector<Piece>& out) { divide(text, piece, finder, out); });
  };
  extract_with(in_original_);
  if (normalizer != nullptr) {
    normalizer->apply(text);
    text.split([](const Piece& piece, std::vector<Piece>& out) { out.push_back(piece); });  // without empty ones
  }
  extract_with(in_normalized_);
}

}  // namespace qkv::text
