// SPDX-License-Identifier: Apache-2.0
#include "text/aligned_text.h"

#include <algorithm>

#include "qkv/support/error.h"
#include "text/utf8.h"

namespace qkv::text {

void AlignedText::reset(std::string_view original) {
  require(original.size() < (uint64_t{1} << 28), "text: a line of ", original.size(), " bytes, at most 268435455");
  original_ = original;
  text_ = original;
  spans_.resize(original.size());
  for (size_t at = 0; at < original.size();) {
    const size_t end = std::min(at + utf8_length(original[at]), original.size());
    const Span span{static_cast<uint32_t>(at), static_cast<uint32_t>(end)};
    while (at < end) spans_[at++] = span;
  }
  pieces_.clear();
  const auto size = static_cast<uint32_t>(original.size());
  if (size > 0) pieces_.push_back({.text = {0, size}, .original = {0, size}});
}

Span AlignedText::origin(const Piece& piece, uint32_t begin, uint32_t end) const {
  if (begin == end) return {piece.original.begin + begin, piece.original.begin + end};
  return {spans_[piece.text.begin + begin].begin, spans_[piece.text.begin + end - 1].end};
}

Piece AlignedText::slice(const Piece& piece, uint32_t begin, uint32_t end) const {
  Piece part;
  part.text = {piece.text.begin + begin, piece.text.begin + end};
  part.original = origin(piece, begin, end);
  // Marks that moved can leave a part that ends before it begins, or outside its piece: it stands for nothing.
  const bool inside = part.original.begin >= piece.original.begin && part.original.end <= piece.original.end;
  if (!inside || part.original.end < part.original.begin) part.original.end = part.original.begin;
  return part;
}

void AlignedText::drop_empty(size_t first) {
  const auto begin = next_pieces_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto empty = [](const Piece& piece) { return piece.token < 0 && piece.text.size() == 0; };
  next_pieces_.erase(std::remove_if(begin, next_pieces_.end(), empty), next_pieces_.end());
}

TextEditor::TextEditor(AlignedText& owner, const Piece& piece)
    : owner_(owner), piece_(piece), text_(owner.text(piece)), spans_(owner.spans_.data() + piece.text.begin) {}

void TextEditor::copy(uint32_t begin, uint32_t end) {
  owner_.next_text_.append(text_, begin, end - begin);
  owner_.next_spans_.insert(owner_.next_spans_.end(), spans_ + begin, spans_ + end);
}

void TextEditor::reserve(size_t bytes) const {
  // Unicode's own forms make a text at most 18 times as long. What grows far more is a file that means no good.
  constexpr size_t kMostGrowth = 256, kSmall = 1 << 20;
  require(owner_.next_text_.size() + bytes <= kSmall + kMostGrowth * owner_.original_.size(),
          "text: normalizers made it more than ", kMostGrowth, " times as long");
}

void TextEditor::insert_after(uint32_t after, std::string_view bytes) {
  reserve(bytes.size());
  const uint32_t front = piece_.original.begin;
  const Span span = after > 0 ? spans_[after - 1] : Span{front, front};
  owner_.next_text_.append(bytes);
  owner_.next_spans_.insert(owner_.next_spans_.end(), bytes.size(), span);
}

void TextEditor::begin(size_t removed) {
  const auto size = static_cast<uint32_t>(text_.size());
  uint32_t first = 0, last = 0;
  if (piece_.original.size() > 0) {
    // Up to the first byte from behind the piece, without those at the front that came from nowhere.
    while (last < size && spans_[last].end - piece_.original.begin <= piece_.original.size()) ++last;
    while (first < last && spans_[first].size() == 0) ++first;
    unchanged_ = last == 0;
    if (unchanged_) return;
  }
  at_ = first;
  last_ = last;
  if (first > 0) copy(0, first);
  skip(removed);
}

void TextEditor::skip(size_t characters) {
  for (; characters > 0 && at_ < last_; --characters) at_ += static_cast<uint32_t>(utf8_length(text_[at_]));
}

void TextEditor::put(char32_t character, int change) {
  if (unchanged_) return;
  Span span{piece_.original.begin, piece_.original.begin};
  if (change > 0) {
    if (at_ > 0) span = spans_[at_ - 1];
  } else {
    require(at_ < text_.size(), "text: a normalizer changed characters that are not there");
    span = spans_[at_];
    skip(1 + static_cast<size_t>(-change));
  }
  char bytes[4];
  const size_t length = utf8_encode(character, bytes);
  reserve(length);
  owner_.next_text_.append(bytes, length);
  owner_.next_spans_.insert(owner_.next_spans_.end(), length, span);
}

void TextEditor::end() { copy(last_, static_cast<uint32_t>(text_.size())); }

}  // namespace qkv::text
