// SPDX-License-Identifier: Apache-2.0
#include "text/aligned_text.h"

#include <gtest/gtest.h>

#include "qkv/support/error.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

/// The text of a piece, each character with the bytes of the original it came from: "a0-1 b1-2".
std::string shown(const AlignedText& text, const Piece& piece) {
  std::string result;
  const std::string_view bytes = text.text(piece);
  for_each_character(bytes, [&](size_t at, char32_t c) {
    const auto begin = static_cast<uint32_t>(at);
    const Span origin = text.origin(piece, begin, begin + static_cast<uint32_t>(utf8_length(bytes[at])));
    if (!result.empty()) result += ' ';
    utf8_append(result, c);
    result += std::to_string(origin.begin) + "-" + std::to_string(origin.end);
  });
  return result;
}

AlignedText of(const char* original) {
  AlignedText text;
  text.reset(original);
  return text;
}

TEST(AlignedText, BeginsAsTheOriginal) {
  const AlignedText text = of("aé👍");
  ASSERT_EQ(text.pieces().size(), 1U);
  EXPECT_EQ(shown(text, text.pieces()[0]), "a0-1 é1-3 👍3-7");
}

TEST(AlignedText, AnEmptyTextHasNoPiece) { EXPECT_TRUE(of("").pieces().empty()); }

TEST(AlignedText, AReplacedCharacterKeepsItsPlace) {
  AlignedText text = of("aéb");
  text.rewrite([](TextEditor& editor) {
    editor.begin();
    editor.put('A', 0);
    editor.put('e', 0);
    editor.put(0x301, 1);
    editor.put('B', 0);
    editor.end();
  });
  EXPECT_EQ(shown(text, text.pieces()[0]), "A0-1 e1-3 \u03011-3 B3-4");
}

TEST(AlignedText, RemovedCharactersLeaveAGap) {
  AlignedText text = of("abcde");
  text.rewrite([](TextEditor& editor) {
    editor.begin(1);
    editor.put('b', -2);
    editor.put('e', 0);
    editor.end();
  });
  EXPECT_EQ(shown(text, text.pieces()[0]), "b1-2 e4-5");
}

TEST(AlignedText, WhatIsPutInFrontComesFromTheFirstCharacter) {
  AlignedText text = of("xy");
  text.rewrite([](TextEditor& editor) {
    editor.insert_after(1, "_");
    editor.copy();
  });
  EXPECT_EQ(shown(text, text.pieces()[0]), "_0-1 x0-1 y1-2");
}

TEST(AlignedText, InsertedAtTheVeryFrontComesFromNowhereAndStays) {
  AlignedText text = of("xy");
  text.rewrite([](TextEditor& editor) {
    editor.insert_after(0, ">");
    editor.copy();
  });
  EXPECT_EQ(shown(text, text.pieces()[0]), ">0-0 x0-1 y1-2");
  text.rewrite([](TextEditor& editor) {  // a later change to the whole text begins behind it
    editor.begin();
    editor.put('X', 0);
    editor.put('Y', 0);
    editor.end();
  });
  EXPECT_EQ(shown(text, text.pieces()[0]), ">0-0 X0-1 Y1-2");
}

TEST(AlignedText, ChangesBeyondTheTextAreRefused) {
  AlignedText text = of("x");
  const auto change = [](TextEditor& editor) {
    editor.begin();
    editor.put('a', 0);
    editor.put('b', 0);
  };
  EXPECT_THROW(text.rewrite(change), Error);
}

TEST(AlignedText, PiecesOfPiecesSpeakOfTheOriginal) {
  AlignedText text = of("aéb cd");
  const auto divide = [&](uint32_t at) {
    text.split([&](const Piece& piece, std::vector<Piece>& out) {
      if (at >= piece.text.size()) return out.push_back(piece);
      out.push_back(text.slice(piece, 0, at));
      out.push_back(text.slice(piece, at, piece.text.size()));
    });
  };
  divide(3);
  divide(1);
  ASSERT_EQ(text.pieces().size(), 4U);
  EXPECT_EQ(shown(text, text.pieces()[1]), "é1-3");
  EXPECT_EQ(shown(text, text.pieces()[3]), " 4-5 c5-6 d6-7");
  EXPECT_EQ(text.pieces()[3].original.begin, 4U);
  EXPECT_EQ(text.pieces()[3].original.end, 7U);
}

TEST(AlignedText, EmptyPiecesVanishAndAddedTokensStay) {
  AlignedText text = of("ab");
  text.split([&](const Piece& piece, std::vector<Piece>& out) {
    out.push_back(text.slice(piece, 0, 0));
    Piece token = text.slice(piece, 0, 1);
    token.token = 7;
    out.push_back(token);
    out.push_back(text.slice(piece, 1, 2));
  });
  text.rewrite([](TextEditor& editor) { editor.insert_after(1, editor.text() == "b" ? "B" : "?"); });
  ASSERT_EQ(text.pieces().size(), 2U);
  EXPECT_EQ(text.pieces()[0].token, 7);
  EXPECT_EQ(text.text(text.pieces()[1]), "B");
}

}  // namespace
}  // namespace qkv::text
