// SPDX-License-Identifier: Apache-2.0
#include "text/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "qkv/support/error.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

std::string replaced(const std::string& text, std::string_view old, std::string_view with) {
  std::string result;
  if (old.empty()) {  // between all characters
    for_each_character(text, [&](size_t, char32_t c) {
      result += with;
      utf8_append(result, c);
    });
    return result.append(with);
  }
  size_t begin = 0;
  for (size_t at = text.find(old); at != text.npos; at = text.find(old, begin)) {
    result.append(text, begin, at - begin).append(with);
    begin = at + old.size();
  }
  return result.append(text, begin);
}

/// Blanks before punctuation and in English contractions, as BERT's tokenizer writes them, go.
std::string tidied(std::string text) {
  constexpr const char* kRules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                       {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                       {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [old, with] : kRules) text = replaced(text, old, with);
  return text;
}

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(JsonFields& fields) : suffix_(fields.string("suffix")) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t n = 0; n < tokens.size(); ++n) {
      tokens[n] = replaced(tokens[n], suffix_, n + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

class ByteLevel : public Decoder {
 public:
  explicit ByteLevel(JsonFields& fields) {
    fields.boolean("add_prefix_space");  // of use to the pre-tokenizer and the post-processor alone, all three
    fields.boolean("trim_offsets");
    fields.boolean("use_regex", true);
  }
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const size_t begin = bytes.size();
      bool all = true;
      for_each_character(token, [&](size_t, char32_t c) {
        const auto byte = byte_of_character(c);
        all = all && byte.has_value();
        if (all) bytes += static_cast<char>(*byte);
      });
      if (!all) bytes.replace(begin, std::string::npos, token);  // a token of another kind, as it is
    }
    tokens = {utf8_repaired(bytes)};
  }
};

class WordPiece : public Decoder {
 public:
  explicit WordPiece(JsonFields& fields) : prefix_(fields.string("prefix")), tidy_(fields.boolean("cleanup")) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t n = 0; n < tokens.size(); ++n) {
      std::string& token = tokens[n];
      if (n > 0) token = token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token;
      if (tidy_) token = tidied(std::move(token));
    }
  }

 private:
  std::string prefix_;
  bool tidy_;
};

class Metaspace : public Decoder {
 public:
  explicit Metaspace(JsonFields& fields)
      : character_(fields.character("replacement")), prepends_(read_prepend_scheme(fields) != PrependScheme::never) {
    if (fields.has("split")) fields.boolean("split");
    fields.ignore("split");
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t n = 0; n < tokens.size(); ++n) {
      std::string text;
      for_each_character(tokens[n], [&](size_t, char32_t c) {
        if (c != character_) {
          utf8_append(text, c);
        } else if (n > 0 || !prepends_) {
          text += ' ';
        }
      });
      tokens[n] = text;
    }
  }

 private:
  char32_t character_;
  bool prepends_;
};

class Ctc : public Decoder {
 public:
  explicit Ctc(JsonFields& fields)
      : pad_(fields.string("pad_token")),
        delimiter_(fields.string("word_delimiter_token")),
        tidy_(fields.boolean("cleanup")) {}
  void apply(std::vector<std::string>& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      token = replaced(token, pad_, "");
      if (tidy_) token = replaced(tidied(std::move(token)), delimiter_, " ");
    }
    std::erase(tokens, "");
  }

 private:
  std::string pad_, delimiter_;
  bool tidy_;
};

class Replace : public Decoder {
 public:
  explicit Replace(JsonFields& fields)
      : pattern_(make_pattern(fields.any("pattern"), fields.where() + ": pattern")),
        content_(fields.string("content")) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<Match> matches;
    for (std::string& token : tokens) {
      if (token.empty()) continue;
      matches.clear();
      pattern_->find(token, matches);
      std::string text;
      for (const Match& match : matches) {
        text += match.is_match ? content_ : token.substr(match.begin, match.end - match.begin);
      }
      token = text;
    }
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens = {text};
  }
};

class Strip : public Decoder {
 public:
  explicit Strip(JsonFields& fields)
      : character_(fields.character("content")), start_(fields.integer("start")), stop_(fields.integer("stop")) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      size_t begin = 0, end = token.size();
      for (uint32_t n = 0; n < start_ && begin < end && utf8_decode(token.data() + begin) == character_; ++n) {
        begin += utf8_length(token[begin]);
      }
      for (uint32_t n = 0; n < stop_ && end > begin; ++n) {
        size_t before = 0;
        if (utf8_before(token, end, &before) != character_) break;
        end = before;
      }
      token = token.substr(begin, end - begin);
    }
  }

 private:
  char32_t character_;
  uint32_t start_, stop_;
};

class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (utf8_first_invalid(bytes) == std::string::npos) {
        result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        bytes += static_cast<char>(*byte);
        continue;
      }
      flush();
      result.push_back(std::move(token));
    }
    flush();
    tokens = std::move(result);
  }
};

class Sequence : public Decoder {
 public:
  explicit Sequence(JsonFields& fields) {
    int number = 0;
    for (const Json& part : fields.list("decoders")) {
      parts_.push_back(make_decoder(part, concat(fields.where(), ": ", number++)));
    }
  }
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& part : parts_) part->apply(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> parts_;
};

std::unique_ptr<Decoder> make(int kind, JsonFields& fields) {
  switch (kind) {
    case 0: return std::make_unique<BpeDecoder>(fields);
    case 1: return std::make_unique<ByteLevel>(fields);
    case 2: return std::make_unique<WordPiece>(fields);
    case 3: return std::make_unique<Metaspace>(fields);
    case 4: return std::make_unique<Ctc>(fields);
    case 5: return std::make_unique<Sequence>(fields);
    case 6: return std::make_unique<Replace>(fields);
    case 7: return std::make_unique<Fuse>();
    case 8: return std::make_unique<Strip>(fields);
    default: return std::make_unique<ByteFallback>();
  }
}

}  // namespace

std::optional<unsigned char> byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return {};
  const char* begin = token.data() + 3 + (token[3] == '+' ? 1 : 0);
  unsigned char byte = 0;
  const auto [end, code] = std::from_chars(begin, token.data() + 5, byte, 16);
  if (code != std::errc() || end != token.data() + 5) return {};
  return byte;
}

std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where) {
  JsonFields untyped(json, where);
  const std::string type = untyped.string("type");
  const int kind = choose(type,
                          {"BPEDecoder", "ByteLevel", "WordPiece", "Metaspace", "CTC", "Sequence", "Replace", "Fuse",
                           "Strip", "ByteFallback"},
                          where + ": type");
  JsonFields fields(json, where + ": " + type);
  fields.ignore("type");
  auto decoder = make(kind, fields);
  fields.done();
  return decoder;
}

}  // namespace qkv::text
