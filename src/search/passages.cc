// SPDX-License-Identifier: Apache-2.0
#include "qkv/search/passages.h"

#include <algorithm>
#include <utility>

#include "qkv/support/error.h"
#include "text/utf8.h"

namespace qkv {
namespace {

/// Text that is not cut any more.
struct Piece {
  int64_t line = 0;
  std::string_view text;
  int64_t tokens = 0;
  bool begins_line = true;  ///< else it goes on in the line of the piece before
  bool after_blank = false;
};

constexpr std::string_view kBlanks = " \t\r\f\v";

std::string_view without_blanks_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(kBlanks);
  return last == text.npos ? std::string_view() : text.substr(0, last + 1);
}

class Cutter {
 public:
  Cutter(int64_t most, const CountTokens& count_tokens) : most_(most), count_(count_tokens) {}

  std::vector<Piece> cut(std::string_view text) {
    int64_t number = 1;
    for (size_t at = 0; at < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = without_blanks_at_end(text.substr(at, end - at));
      if (line.empty()) {
        flush();
      } else {
        if (line.starts_with('#')) flush();
        if (paragraph_.empty()) first_ = number;
        paragraph_.push_back(line);
      }
      at = end + 1;
    }
    flush();
    return std::move(pieces_);
  }

 private:
  /// A paragraph has ended: one piece if it is short, else its lines.
  void flush() {
    if (paragraph_.empty()) return;
    blank_ = true;
    const std::string_view all(paragraph_.front().data(),
                               static_cast<size_t>(paragraph_.back().end() - paragraph_.front().begin()));
    if (const int64_t tokens = count_(all); tokens <= most_) {
      add(first_, all, tokens, true);
    } else {
      for (size_t n = 0; n < paragraph_.size(); ++n) add_line(first_ + static_cast<int64_t>(n), paragraph_[n]);
    }
    paragraph_.clear();
  }

  void add_line(int64_t number, std::string_view line) {
    if (const int64_t tokens = count_(line); tokens <= most_) return add(number, line, tokens, true);
    bool begins = true;
    size_t begin = 0, end = 0;
    int64_t tokens = 0;
    const auto add_words = [&] {
      if (end > begin) add(number, line.substr(begin, end - begin), tokens, std::exchange(begins, false));
      begin = end;
      tokens = 0;
    };
    while (end < line.size()) {
      const size_t word = std::min(line.find_first_not_of(kBlanks, end), line.size());
      const size_t word_end = std::min(line.find_first_of(kBlanks, word), line.size());
      const int64_t more = count_(line.substr(word, word_end - word));
      if (tokens + more > most_) add_words();
      if (more > most_) {
        begin = word;
        for (end = word; end < word_end;) {
          for (int64_t n = 0; n < most_ && end < word_end; ++n) end += text::utf8_length(line[end]);
          tokens = most_;
          add_words();
        }
      } else {
        if (begin == end) begin = word;
        end = word_end;
        tokens += more;
      }
    }
    add_words();
  }

  void add(int64_t line, std::string_view text, int64_t tokens, bool begins_line) {
    pieces_.push_back({line, text, tokens, begins_line, std::exchange(blank_, false)});
  }

  int64_t most_;
  const CountTokens& count_;
  std::vector<std::string_view> paragraph_;
  int64_t first_ = 1;
  bool blank_ = false;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Passage> cut_passages(std::string_view text, int64_t most, const CountTokens& count_tokens) {
  require(most >= 1, "passages: expected at least 1 token in each, got ", most);
  std::vector<Passage> passages;
  int64_t tokens = 0;
  for (const Piece& piece : Cutter(most, count_tokens).cut(text)) {
    const bool fits = tokens + piece.tokens <= most || tokens < most / 4;
    if (passages.empty() || !fits || (piece.begins_line && piece.text.starts_with('#'))) {
      passages.push_back({piece.line, std::string(piece.text)});
      tokens = piece.tokens;
      continue;
    }
    passages.back().text += piece.after_blank ? "\n\n" : piece.begins_line ? "\n" : " ";
    passages.back().text += piece.text;
    tokens += piece.tokens;
  }
  return passages;
}

}  // namespace qkv
