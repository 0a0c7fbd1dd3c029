// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <utility>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

/// Keeps the characters for which `keep` holds.
template <class Keep>
void filter(TextEditor& editor, Keep&& keep) {
  // A change says how many characters after it are gone, so each waits for the next one kept.
  size_t removed = 0;
  bool any = false;
  char32_t kept = 0;
  size_t front = 0;
  for_each_character(editor.text(), [&](size_t, char32_t c) {
    if (!keep(c)) {
      front += any ? 0 : 1;
    } else {
      any = true;
    }
  });
  editor.begin(any ? front : 0);
  any = false;
  for_each_character(editor.text(), [&](size_t, char32_t c) {
    if (!keep(c)) {
      ++removed;
      return;
    }
    if (any) editor.put(kept, -static_cast<int>(removed));
    any = true;
    kept = c;
    removed = 0;
  });
  if (any) editor.put(kept, -static_cast<int>(removed));
  editor.end();
}

/// Replaces each character by one other.
template <class Map>
void map(TextEditor& editor, Map&& to) {
  editor.begin();
  for_each_character(editor.text(), [&](size_t, char32_t c) { editor.put(to(c), 0); });
  editor.end();
}

void write_form(TextEditor& editor, NormalizationForm form) {
  // Below U+0300 nothing composes or is sorted, and below U+00A0 nothing is decomposed either.
  bool plain = true;
  const bool composes = form == NormalizationForm::nfc;
  for (const char byte : editor.text()) plain = plain && static_cast<unsigned char>(byte) < (composes ? 0xCC : 0x80);
  std::vector<Change> changes;
  if (plain) {
    map(editor, [](char32_t c) { return c; });
    return;
  }
  normalize(form, editor.text(), changes);
  editor.begin();
  for (const Change& change : changes) editor.put(change.character, change.change);
  editor.end();
}

void write_lower_case(TextEditor& editor) {
  editor.begin();
  for_each_character(editor.text(), [&](size_t, char32_t c) {
    if (c == 0x130) {
      editor.put('i', 0);
      editor.put(0x307, 1);
    } else {
      editor.put(lower_case(c), 0);
    }
  });
  editor.end();
}

class Form : public Normalizer {
 public:
  explicit Form(NormalizationForm form) : form_(form) {}
  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) { write_form(editor, form_); });
  }

 private:
  NormalizationForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text.rewrite(write_lower_case); }
};

class StripAccents : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    text.rewrite([](TextEditor& editor) { filter(editor, [](char32_t c) { return !is_any(c, kCombining); }); });
  }
};

class Nmt : public Normalizer {
 public:
  void apply(AlignedText& text) const override {
    text.rewrite([](TextEditor& editor) { filter(editor, [](char32_t c) { return !is_dropped(c); }); });
    text.rewrite([](TextEditor& editor) { map(editor, [](char32_t c) { return is_blank(c) ? U' ' : c; }); });
  }

 private:
  static bool is_dropped(char32_t c) {
    return (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool is_blank(char32_t c) {
    return c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

class Strip : public Normalizer {
 public:
  explicit Strip(JsonFields& fields) : left_(fields.boolean("strip_left")), right_(fields.boolean("strip_right")) {}
  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) { write(editor); });
  }

 private:
  void write(TextEditor& editor) const {
    const std::string_view text = editor.text();
    size_t begin = 0, end = text.size(), removed = 0;
    while (left_ && begin < text.size() && is_white_space(utf8_decode(text.data() + begin))) {
      begin += utf8_length(text[begin]);
      ++removed;
    }
    for (size_t before = 0; right_ && end > 0 && is_white_space(utf8_before(text, end, &before));) end = before;
    if (begin == 0 && end == text.size()) return editor.copy();
    editor.begin(removed);
    if (begin < end) for_each_character(text.substr(begin, end - begin), [&](size_t, char32_t c) { editor.put(c, 0); });
    editor.end();
  }
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(JsonFields& fields) : text_(fields.string("prepend")) {}
  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) {
      const std::string_view old = editor.text();
      if (old.empty()) return;
      const auto first = static_cast<uint32_t>(utf8_length(old[0]));
      // With nothing before it, the first character counts as new, and there is nothing that it could come from.
      editor.insert_after(text_.empty() ? 0 : 1, text_.empty() ? old.substr(0, first) : text_);
      editor.copy(text_.empty() ? first : 0, static_cast<uint32_t>(old.size()));
    });
  }

 private:
  std::string text_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(JsonFields& fields)
      : pattern_(make_pattern(fields.any("pattern"), fields.where() + ": pattern")),
        content_(fields.string("content")) {}
  void apply(AlignedText& text) const override {
    text.rewrite([&](TextEditor& editor) {
      if (editor.text().empty()) return;
      std::vector<Match> matches;
      pattern_->find(editor.text(), matches);
      for (const Match& match : matches) {
        const auto begin = static_cast<uint32_t>(match.begin), end = static_cast<uint32_t>(match.end);
        if (match.is_match) {
          editor.insert_after(end, content_);
        } else {
          editor.copy(begin, end);
        }
      }
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class ByteLevel : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text.rewrite(write_byte_level); }
};

class Bert : public Normalizer {
 public:
  explicit Bert(JsonFields& fields)
      : clean_(fields.boolean("clean_text")),
        ideographs_(fields.boolean("handle_chinese_chars")),
        lower_(fields.boolean("lowercase")) {
    accents_ = fields.has("strip_accents") ? fields.boolean("strip_accents") : lower_;
    fields.ignore("strip_accents");
  }
  void apply(AlignedText& text) const override {
    if (clean_) {
      text.rewrite([](TextEditor& editor) { filter(editor, is_kept); });
      text.rewrite([](TextEditor& editor) { map(editor, [](char32_t c) { return is_white_space(c) ? U' ' : c; }); });
    }
    if (ideographs_) text.rewrite(write_ideographs);
    if (accents_) {
      text.rewrite([](TextEditor& editor) { write_form(editor, NormalizationForm::nfd); });
      text.rewrite([](TextEditor& editor) { filter(editor, [](char32_t c) { return !is_any(c, kNonspacing); }); });
    }
    if (lower_) text.rewrite(write_lower_case);
  }

 private:
  static bool is_kept(char32_t c) { return c != 0 && c != 0xFFFD && !is_any(c, kOther); }
  static bool is_ideograph(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }
  static void write_ideographs(TextEditor& editor) {
    editor.begin();
    for_each_character(editor.text(), [&](size_t, char32_t c) {
      const bool ideograph = is_ideograph(c);
      if (ideograph) editor.put(' ', 0);
      editor.put(c, ideograph ? 1 : 0);
      if (ideograph) editor.put(' ', 1);
    });
    editor.end();
  }
  bool clean_, ideographs_, lower_, accents_ = false;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(JsonFields& fields) {
    int number = 0;
    for (const Json& part : fields.list("normalizers")) {
      parts_.push_back(make_normalizer(part, concat(fields.where(), ": ", number++)));
    }
  }
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> make(int kind, JsonFields& fields) {
  switch (kind) {
    case 0: return std::make_unique<Bert>(fields);
    case 1: return std::make_unique<Strip>(fields);
    case 2: return std::make_unique<StripAccents>();
    case 3: return std::make_unique<Form>(NormalizationForm::nfc);
    case 4: return std::make_unique<Form>(NormalizationForm::nfd);
    case 5: return std::make_unique<Form>(NormalizationForm::nfkc);
    case 6: return std::make_unique<Form>(NormalizationForm::nfkd);
    case 7: return std::make_unique<Sequence>(fields);
    case 8: return std::make_unique<Lowercase>();
    case 9: return std::make_unique<Nmt>();
    case 10: return make_precompiled(fields);
    case 11: return std::make_unique<Replace>(fields);
    case 12: return std::make_unique<Prepend>(fields);
    default: return std::make_unique<ByteLevel>();
  }
}

}  // namespace

void write_byte_level(TextEditor& editor) {
  editor.begin();
  const std::string_view text = editor.text();
  for (const char byte : text) {
    editor.put(byte_characters()[static_cast<unsigned char>(byte)], utf8_continues(byte) ? 1 : 0);
  }
  editor.end();
}

std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where) {
  JsonFields untyped(json, where);
  const std::string type = untyped.string("type");
  const int kind = choose(type,
                          {"BertNormalizer", "Strip", "StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Sequence",
                           "Lowercase", "Nmt", "Precompiled", "Replace", "Prepend", "ByteLevel"},
                          where + ": type");
  JsonFields fields(json, where + ": " + type);
  fields.ignore("type");
  auto normalizer = make(kind, fields);
  fields.done();
  return normalizer;
}

std::string normalized(const Normalizer* normalizer, const std::string& text) {
  if (normalizer == nullptr) return text;
  AlignedText aligned;
  aligned.reset(text);
  normalizer->apply(aligned);
  std::string result;
  for (const Piece& piece : aligned.pieces()) result += aligned.text(piece);
  return result;
}

}  // namespace qkv::text
