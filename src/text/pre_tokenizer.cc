// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.h"

#include "qkv/support/error.h"
#include "text/normalizer.h"
#include "text/split.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

/// Splits on what find(text, matches) finds.
template <class Find>
void split_all(AlignedText& text, Behavior behavior, Find&& find) {
  std::vector<Match> matches;
  text.split([&](const Piece& piece, std::vector<Piece>& out) {
    find(text.text(piece), matches);
    split_piece(text, piece, behavior, matches, out);
  });
}

/// Splits on characters for which `holds`.
template <class Holds>
void split_characters(AlignedText& text, Behavior behavior, Holds&& holds) {
  split_all(text, behavior,
            [&](std::string_view piece, std::vector<Match>& matches) { find_characters(piece, holds, matches); });
}

void invert(std::vector<Match>& matches) {
  for (Match& match : matches) match.is_match = !match.is_match;
}

class WhitespaceSplit : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override { split_characters(text, Behavior::removed, is_white_space); }
};

/// Words, and runs of what is neither word nor blank: \w+|[^\w\s]+
class Whitespace : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    split_all(text, Behavior::removed, [](std::string_view piece, std::vector<Match>& matches) {
      size_t begin = 0;
      uint32_t kind = kWhiteSpace;  // of the run from `begin` on: white space, word, or 0 for the rest
      const auto finish = [&](size_t end) {
        if (begin < end) matches.push_back({begin, end, kind == kWhiteSpace});
        begin = end;
      };
      for_each_character(piece, [&](size_t at, char32_t c) {
        const uint32_t now = is_any(c, kWord) ? uint32_t{kWord} : is_any(c, kWhiteSpace) ? uint32_t{kWhiteSpace} : 0;
        if (now != kind) finish(at);
        kind = now;
      });
      finish(piece.size());
    });
  }
};

class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    split_characters(text, Behavior::removed, is_white_space);
    split_characters(text, Behavior::isolated, [](char32_t c) { return is_any(c, kPunctuation); });
  }
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(JsonFields& fields)
      : behavior_(behavior_of(fields.string("behavior", "Isolated"), fields.where() + ": behavior")) {}
  void apply(AlignedText& text) const override {
    split_characters(text, behavior_, [](char32_t c) { return is_any(c, kPunctuation); });
  }

 private:
  Behavior behavior_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(JsonFields& fields)
      : behavior_(fields.boolean("individual_digits") ? Behavior::isolated : Behavior::contiguous) {}
  void apply(AlignedText& text) const override {
    split_characters(text, behavior_, [](char32_t c) { return is_any(c, kNumeric); });
  }

 private:
  Behavior behavior_;
};

class CharDelimiterSplit : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(JsonFields& fields) : delimiter_(fields.character("delimiter")) {}
  void apply(AlignedText& text) const override {
    split_characters(text, Behavior::removed, [&](char32_t c) { return c == delimiter_; });
  }

 private:
  char32_t delimiter_;
};

class Split : public PreTokenizer {
 public:
  explicit Split(JsonFields& fields)
      : pattern_(make_pattern(fields.any("pattern"), fields.where() + ": pattern")),
        behavior_(behavior_of(fields.string("behavior"), fields.where() + ": behavior")),
        invert_(fields.boolean("invert")) {}
  void apply(AlignedText& text) const override {
    split_all(text, behavior_, [&](std::string_view piece, std::vector<Match>& matches) {
      pattern_->find(piece, matches);
      if (invert_) invert(matches);
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(JsonFields& fields) : prefix_(fields.boolean("add_prefix_space")) {
    fields.boolean("trim_offsets");  // of use to the post-processor alone
    if (fields.boolean("use_regex", true)) pattern_ = byte_level_pattern();
  }
  void apply(AlignedText& text) const override {
    if (prefix_) {
      text.rewrite([](TextEditor& editor) {
        if (!editor.text().starts_with(' ')) editor.insert_after(1, " ");
        editor.copy();
      });
    }
    if (pattern_ != nullptr) {
      split_all(text, Behavior::isolated,
                [&](std::string_view piece, std::vector<Match>& matches) { pattern_->find(piece, matches); });
    }
    text.rewrite(write_byte_level);
  }

 private:
  bool prefix_;
  std::unique_ptr<Pattern> pattern_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(JsonFields& fields)
      : character_(fields.character("replacement")), scheme_(read_prepend_scheme(fields)) {
    split_ = fields.has("split") ? fields.boolean("split") : true;
    fields.ignore("split");
    utf8_append(replacement_, character_);
  }
  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) { write(editor); });
    if (split_) split_characters(text, Behavior::merged_with_next, [&](char32_t c) { return c == character_; });
  }

 private:
  void write(TextEditor& editor) const {
    const std::string_view old = editor.text();
    const bool starts = old.starts_with(' ') || old.starts_with(replacement_);
    const bool wanted =
        scheme_ == PrependScheme::always || (scheme_ == PrependScheme::first && editor.piece().original.begin == 0);
    if (wanted && !starts) editor.insert_after(1, replacement_);
    uint32_t begin = 0;
    for (size_t at = old.find(' '); at != old.npos; at = old.find(' ', begin)) {
      editor.copy(begin, static_cast<uint32_t>(at));
      begin = static_cast<uint32_t>(at + 1);
      editor.insert_after(begin, replacement_);
    }
    editor.copy(begin, static_cast<uint32_t>(old.size()));
  }

  char32_t character_;
  std::string replacement_;
  PrependScheme scheme_;
  bool split_ = true;
};

/// Where the script changes. Blanks and characters of no script go with what stands before them; when nothing does,
/// they are dropped.
class UnicodeScripts : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override {
    text.split([&](const Piece& piece, std::vector<Piece>& out) {
      uint8_t last = 0;
      uint32_t begin = 0;
      bool begun = false;
      const auto finish = [&](size_t end) {
        if (begun) out.push_back(text.slice(piece, begin, static_cast<uint32_t>(end)));
        begun = true;
        begin = static_cast<uint32_t>(end);
      };
      const std::string_view old = text.text(piece);
      for_each_character(old, [&](size_t at, char32_t c) {
        const uint8_t script = script_of(c);
        if (script == 0) return;
        if (script != last) finish(at);
        last = script;
      });
      finish(old.size());
    });
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(JsonFields& fields) : length_(fields.integer("length", 5)) {
    require(length_ > 0, fields.where(), ": length: expected at least 1, got 0");
  }
  void apply(AlignedText& text) const override {
    text.split([&](const Piece& piece, std::vector<Piece>& out) {
      uint32_t begin = 0, count = 0;
      const std::string_view old = text.text(piece);
      for_each_character(old, [&](size_t at, char32_t) {
        if (count++ < length_) return;
        out.push_back(text.slice(piece, begin, static_cast<uint32_t>(at)));
        begin = static_cast<uint32_t>(at);
        count = 1;
      });
      out.push_back(text.slice(piece, begin, static_cast<uint32_t>(old.size())));
    });
  }

 private:
  uint32_t length_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(JsonFields& fields) {
    int number = 0;
    for (const Json& part : fields.list("pretokenizers")) {
      parts_.push_back(make_pre_tokenizer(part, concat(fields.where(), ": ", number++)));
    }
  }
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

std::unique_ptr<PreTokenizer> make(int kind, JsonFields& fields) {
  switch (kind) {
    case 0: return std::make_unique<BertPreTokenizer>();
    case 1: return std::make_unique<ByteLevel>(fields);
    case 2: return std::make_unique<CharDelimiterSplit>(fields);
    case 3: return std::make_unique<Metaspace>(fields);
    case 4: return std::make_unique<Whitespace>();
    case 5: return std::make_unique<WhitespaceSplit>();
    case 6: return std::make_unique<Sequence>(fields);
    case 7: return std::make_unique<Split>(fields);
    case 8: return std::make_unique<Punctuation>(fields);
    case 9: return std::make_unique<Digits>(fields);
    case 10: return std::make_unique<UnicodeScripts>();
    default: return std::make_unique<FixedLength>(fields);
  }
}

}  // namespace

PrependScheme read_prepend_scheme(JsonFields& fields) {
  const std::string where = fields.where() + ": prepend_scheme";
  auto scheme = static_cast<PrependScheme>(
      choose(fields.string("prepend_scheme", "always"), {"always", "first", "never"}, where));
  if (fields.has("add_prefix_space") && !fields.boolean("add_prefix_space")) {
    require(scheme == PrependScheme::never, fields.where(),
            ": add_prefix_space is false, which goes with prepend_scheme \"never\" alone");
  }
  fields.ignore("add_prefix_space");
  fields.ignore("str_rep");
  return scheme;
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  JsonFields untyped(json, where);
  const std::string type = untyped.string("type");
  const int kind =
      choose(type,
             {"BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Metaspace", "Whitespace", "WhitespaceSplit",
              "Sequence", "Split", "Punctuation", "Digits", "UnicodeScripts", "FixedLength"},
             where + ": type");
  JsonFields fields(json, where + ": " + type);
  fields.ignore("type");
  auto pre_tokenizer = make(kind, fields);
  fields.done();
  return pre_tokenizer;
}

}  // namespace qkv::text
