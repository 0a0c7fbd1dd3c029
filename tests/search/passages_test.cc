// SPDX-License-Identifier: Apache-2.0
#include "qkv/search/passages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "qkv/support/error.h"
#include "random_stream.h"
#include "text/utf8.h"

namespace qkv {
namespace {

/// Words between blanks.
int64_t count_words(std::string_view text) {
  int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n' || c == '\t';
    words += !blank && !inside;
    inside = !blank;
  }
  return words;
}

std::vector<Passage> cut(std::string_view text, int64_t most = 8) { return cut_passages(text, most, count_words); }

using Passages = std::vector<Passage>;

TEST(Passages, NothingGivesNothing) {
  EXPECT_EQ(cut(""), Passages());
  EXPECT_EQ(cut("\n \t\n\r\n"), Passages());
}

TEST(Passages, ParagraphsJoinWhileTheyAreShort) {
  EXPECT_EQ(cut("a b\nc d\n\n\ne f\n"), (Passages{{1, "a b\nc d\n\ne f"}}));
  EXPECT_EQ(cut("a b c d e\n\nf g h i\n\nj"), (Passages{{1, "a b c d e"}, {3, "f g h i\n\nj"}}));
}

TEST(Passages, AShortOneTakesTheNextInAnyCase) {
  EXPECT_EQ(cut("a\n\nb c d e f g h i"), (Passages{{1, "a\n\nb c d e f g h i"}}));
  EXPECT_EQ(cut("a z\n\nb c d e f g h i"), (Passages{{1, "a z"}, {3, "b c d e f g h i"}}));
}

TEST(Passages, AHeadingBeginsAPassage) {
  EXPECT_EQ(cut("a\n# B\nc\n\n## D\n\ne"), (Passages{{1, "a"}, {2, "# B\nc"}, {5, "## D\n\ne"}}));
}

TEST(Passages, ALongParagraphIsCutBetweenLines) {
  EXPECT_EQ(cut("a b c d\ne f g h\ni j k l"), (Passages{{1, "a b c d\ne f g h"}, {3, "i j k l"}}));
}

TEST(Passages, ALongLineIsCutBetweenWords) {
  EXPECT_EQ(cut("x\ny\na b c d e f g h i j"), (Passages{{1, "x\ny"}, {3, "a b c d e f g h"}, {3, "i j"}}));
}

TEST(Passages, ALongWordIsCutBetweenCharacters) {
  const auto count_characters = [](std::string_view text) { return static_cast<int64_t>(text::utf8_count(text)); };
  EXPECT_EQ(cut_passages("ab ééééé", 2, count_characters), (Passages{{1, "ab"}, {1, "éé"}, {1, "éé"}, {1, "é"}}));
}

TEST(Passages, OfNoTokensAreRefused) {
  for (const int64_t most : {0, -1}) EXPECT_THROW(cut("a", most), Error);
}

TEST(Passages, LinesKeepTheirIndentationAndLoseBlanksAtTheirEnds) {
  EXPECT_EQ(cut("  a b  \r\n    c\t\n"), (Passages{{1, "  a b  \r\n    c"}}));
}

TEST(Passages, NoWordIsLostAndLinesAreRight) {
  test::Stream random(5);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    std::vector<std::pair<std::string, int64_t>> words;  // with their lines
    int64_t line = 1;
    for (int64_t n = random.integer(0, 80); n > 0; --n) {
      const double kind = random.uniform();
      if (kind < 0.6) {
        words.emplace_back(std::string("w").append(std::to_string(words.size())), line);
        text += words.back().first + " ";
      } else if (kind < 0.95) {
        text += "\n";
        ++line;
      } else {
        text += "\n# ";
        words.emplace_back("#", ++line);
      }
    }
    const auto passages = cut(text);
    size_t at = 0;
    for (const Passage& passage : passages) {
      ASSERT_LT(at, words.size());
      EXPECT_EQ(passage.line, words[at].second) << text;
      EXPECT_LE(count_words(passage.text), 8 + 2) << text;
      std::string word;
      for (const char c : passage.text + " ") {
        if (c != ' ' && c != '\n') {
          word += c;
        } else if (!word.empty()) {
          ASSERT_LT(at, words.size());
          EXPECT_EQ(word, words[at++].first) << text;
          word.clear();
        }
      }
    }
    EXPECT_EQ(at, words.size()) << text;
  }
}

}  // namespace
}  // namespace qkv
