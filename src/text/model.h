// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

namespace qkv::text {

/// A token of a piece: bytes [begin, end) of the piece's text.
struct Token {
  uint32_t id, begin, end;
};

/// Memory of one thread that models work in.
struct ModelScratch {
  struct Symbol {
    uint32_t id;
    int32_t previous, next;
    uint32_t length;  ///< in bytes; 0 once it is part of the symbol before it
  };
  struct Merge {
    uint32_t rank, at, id;
  };
  struct Step {  ///< the best way to reach a place: with which token, from where
    double score;
    int64_t from;
    uint32_t id;
  };
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;
  std::vector<Step> steps;
  std::vector<Token> backwards;
  std::string word;
};

/// What turns one piece of text into tokens.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a piece that is not empty. Const and safe from many threads, each with its own scratch.
  virtual void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const = 0;
  /// The text a token stands for in the vocabulary; an unknown one's may be that of the piece.
  virtual std::string_view value(const Token& token, std::string_view /*piece*/) const {
    return vocabulary_.token(token.id).value_or(std::string_view());
  }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

/// Makes the model of a file. Takes the vocabulary and the merges out of `json`. `name` starts the messages.
std::unique_ptr<Model> make_model(TokenizerJson& json, const std::string& name);

// Each model by itself; see make_model.
std::unique_ptr<Model> make_bpe(TokenizerJson& json, JsonFields& fields);
std::unique_ptr<Model> make_word_piece(TokenizerJson& json, JsonFields& fields);
std::unique_ptr<Model> make_word_level(TokenizerJson& json, JsonFields& fields);
std::unique_ptr<Model> make_unigram(TokenizerJson& json, JsonFields& fields);

/// The ids of a vocabulary that is an object; refuses ids given twice. Indexed by id as well.
Vocabulary make_vocabulary(TokenizerJson& json, const std::string& where);

/// "<0x0A>", how byte fallback spells a byte.
std::string byte_token(unsigned char byte);

}  // namespace qkv::text
