// SPDX-License-Identifier: Apache-2.0
// Models that look words up: WordPiece, the longest known beginning again and again, and WordLevel, the whole word.
#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/model.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

/// The id of the unknown token, asked for when it is needed: a file may do without.
uint32_t unknown_id(const Vocabulary& vocabulary, const std::string& token) {
  const auto id = vocabulary.id(token);
  require(id.has_value(), "tokenizer: the unknown token ", in_quotes(token), " is not in the vocabulary");
  return *id;
}

class WordPiece : public Model {
 public:
  WordPiece(TokenizerJson& json, JsonFields& fields)
      : unknown_(fields.string("unk_token")),
        prefix_(fields.string("continuing_subword_prefix")),
        longest_(fields.integer("max_input_chars_per_word")) {
    vocabulary_ = make_vocabulary(json, fields.where());
  }

  void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const override {
    const size_t first = out.size();
    const auto size = static_cast<uint32_t>(piece.size());
    bool known = utf8_count(piece) <= longest_;
    for (uint32_t begin = 0; known && begin < size;) {
      scratch.word.assign(begin > 0 ? prefix_ : "").append(piece, begin);
      std::string_view word = scratch.word;
      std::optional<uint32_t> id;
      uint32_t end = size;
      while (begin < end && !(id = vocabulary_.id(word))) {
        size_t shorter = 0;
        utf8_before(word, word.size(), &shorter);
        end -= static_cast<uint32_t>(word.size() - shorter);
        word = word.substr(0, shorter);
      }
      known = id.has_value();
      if (known) out.push_back({*id, begin, end});
      begin = end;
    }
    if (known) return;
    out.resize(first);
    out.push_back({unknown_id(vocabulary_, unknown_), 0, size});
  }

 private:
  std::string unknown_, prefix_;
  uint32_t longest_;
};

class WordLevel : public Model {
 public:
  WordLevel(TokenizerJson& json, JsonFields& fields) : unknown_(fields.string("unk_token")) {
    vocabulary_ = make_vocabulary(json, fields.where());
  }

  void tokenize(std::string_view piece, ModelScratch&, std::vector<Token>& out) const override {
    const auto id = vocabulary_.id(piece);
    out.push_back({id ? *id : unknown_id(vocabulary_, unknown_), 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  std::string unknown_;
};

}  // namespace

std::unique_ptr<Model> make_word_piece(TokenizerJson& json, JsonFields& fields) {
  return std::make_unique<WordPiece>(json, fields);
}

std::unique_ptr<Model> make_word_level(TokenizerJson& json, JsonFields& fields) {
  return std::make_unique<WordLevel>(json, fields);
}

}  // namespace qkv::text
