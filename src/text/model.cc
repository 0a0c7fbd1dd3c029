// SPDX-License-Identifier: Apache-2.0
#include "text/model.h"

#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv::text {

std::string byte_token(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

Vocabulary make_vocabulary(TokenizerJson& json, const std::string& where) {
  require(json.vocabulary_kind == TokenizerJson::Kind::object, where,
          ": expected the key \"vocab\" with an object, got ",
          json.vocabulary_kind == TokenizerJson::Kind::list ? "a list" : "none");
  Vocabulary vocabulary;
  vocabulary.reserve(json.vocabulary.size());
  for (const TokenizerJson::Entry& entry : json.vocabulary) {
    require(vocabulary.add(entry.token, entry.id), where, ": vocab: the token ", in_quotes(entry.token),
            " occurs twice");
  }
  vocabulary.index_ids();
  for (const TokenizerJson::Entry& entry : json.vocabulary) {
    const std::string_view owner = *vocabulary.token(entry.id);
    require(owner == entry.token, where, ": vocab: the id ", entry.id, " is given to both ", in_quotes(entry.token),
            " and ", in_quotes(owner));
  }
  json.vocabulary = {};
  return vocabulary;
}

std::unique_ptr<Model> make_model(TokenizerJson& json, const std::string& name) {
  require(json.root.contains("model") && !json.root["model"].is_null(), name, ": expected the key \"model\"");
  JsonFields fields(json.root["model"], name + ": model");
  // Files older than the key "type" hold the only models there were then.
  const bool legacy = !fields.has("type");
  std::string type = legacy ? "" : fields.string("type");
  if (legacy) type = json.has_merges ? "BPE" : fields.has("continuing_subword_prefix") ? "WordPiece" : "";
  require(!type.empty(), name, ": model: expected the key \"type\"");
  std::unique_ptr<Model> model;
  switch (choose(type, {"BPE", "WordPiece", "WordLevel", "Unigram"}, name + ": model: type")) {
    case 0: model = make_bpe(json, fields); break;
    case 1: model = make_word_piece(json, fields); break;
    case 2: model = make_word_level(json, fields); break;
    default: model = make_unigram(json, fields);
  }
  require(type == "BPE" || !json.has_merges, name, ": model: unknown key \"merges\"");
  fields.done();
  return model;
}

}  // namespace qkv::text
