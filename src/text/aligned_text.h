// SPDX-License-Identifier: Apache-2.0
// A text on its way to tokens: what normalizers made of it, in pieces, and for every byte the part of the original it
// came from.
//
// The package `tokenizers` keeps such an alignment too, and where its rules are peculiar the offsets it gives follow
// from them. They are followed here: a change replaces, adds or removes characters relative to the text before it,
// marks that sorting moved keep the alignment of the place they moved to, and a whole text is taken to begin at the
// first byte that came from anywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace qkv::text {

/// Bytes [begin, end) of the original, or of a text.
struct Span {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
};

/// A part of the text. `token` is at least 0 for what an added token matched: that has no text any more.
struct Piece {
  Span text;      ///< its bytes in AlignedText::text()
  Span original;  ///< of the original; for an added token, its offsets
  int64_t token = -1;
  uint32_t leading = 0;  ///< of an added token: blanks at its front and back, in characters
  uint32_t trailing = 0;
};

class AlignedText {
 public:
  /// Begins anew with one piece, the whole of `original`, which must stay while this is used. No piece when it is
  /// empty.
  void reset(std::string_view original);

  std::string_view original() const { return original_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  std::string_view text(const Piece& piece) const {
    return std::string_view(text_).substr(piece.text.begin, piece.text.size());
  }

  /// The part of the original that bytes [begin, end) of a piece's text came from.
  Span origin(const Piece& piece, uint32_t begin, uint32_t end) const;
  /// The part [begin, end) of a piece's text as a piece of its own.
  Piece slice(const Piece& piece, uint32_t begin, uint32_t end) const;

  /// Replaces every piece that is no added token by the pieces that divide(piece, pieces) appends. Empty ones vanish.
  template <class Divide>
  void split(Divide&& divide) {
    next_pieces_.clear();
    for (const Piece& piece : pieces_) {
      if (piece.token >= 0) {
        next_pieces_.push_back(piece);
        continue;
      }
      const size_t first = next_pieces_.size();
      divide(piece, next_pieces_);
      drop_empty(first);
    }
    pieces_.swap(next_pieces_);
  }

  /// Gives every piece that is no added token the text that change(editor) writes; see TextEditor. An editor that
  /// writes nothing at all leaves the text empty.
  template <class Change>
  void rewrite(Change&& change);

 private:
  friend class TextEditor;
  void drop_empty(size_t first);

  std::string_view original_;
  std::string text_, next_text_;
  std::vector<Span> spans_, next_spans_;  ///< of the original, for each byte of the text
  std::vector<Piece> pieces_, next_pieces_;
};

/// Writes the new text of one piece. Either copy(), or changes between begin() and end(), or the single steps.
class TextEditor {
 public:
  TextEditor(AlignedText& owner, const Piece& piece);

  std::string_view text() const { return text_; }
  const Piece& piece() const { return piece_; }

  /// The text as it was.
  void copy() { copy(0, static_cast<uint32_t>(text_.size())); }
  /// Bytes [begin, end) of it.
  void copy(uint32_t begin, uint32_t end);
  /// New bytes, from the part of the original that byte `at` of the text came from; at the very front when there is no
  /// byte before: `after` is the position behind that byte.
  void insert_after(uint32_t after, std::string_view bytes);

  /// Changes to the whole text, of which `removed` characters at the front go.
  void begin(size_t removed = 0);
  /// The next character of the new text; `change` as in Change.
  void put(char32_t character, int change);
  void end();

 private:
  void skip(size_t characters);
  /// Refuses a text that has grown out of all proportion.
  void reserve(size_t bytes) const;

  AlignedText& owner_;
  const Piece& piece_;
  std::string_view text_;
  const Span* spans_;
  uint32_t at_ = 0;         ///< the next byte to be replaced
  uint32_t last_ = 0;       ///< where what is replaced ends
  bool unchanged_ = false;  ///< all of the text came from elsewhere: nothing is replaced
};

template <class Change>
void AlignedText::rewrite(Change&& change) {
  next_text_.clear();
  next_spans_.clear();
  for (Piece& piece : pieces_) {
    if (piece.token >= 0) continue;
    const auto begin = static_cast<uint32_t>(next_text_.size());
    TextEditor editor(*this, piece);
    change(editor);
    piece.text = {begin, static_cast<uint32_t>(next_text_.size())};
  }
  text_.swap(next_text_);
  spans_.swap(next_spans_);
}

}  // namespace qkv::text
