// SPDX-License-Identifier: Apache-2.0
// A text becomes tokens in this order: added tokens are found, the rest is normalized, more added tokens are found, the
// rest is split, the model makes tokens of each piece, truncation, post-processing.
#include "qkv/text/tokenizer.h"

#include <algorithm>

#include "qkv/support/error.h"
#include "tensor/mapped_file.h"
#include "text/added_tokens.h"
#include "text/aligned_text.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/truncation.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace qkv {

using namespace text;

struct Tokenizer::Parts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<AddedTokens> added_tokens;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<PostProcessor> post_processor;
  std::unique_ptr<Decoder> decoder;
  std::optional<Truncation> truncation;
};

namespace {

struct Memory {
  AlignedText text;
  ModelScratch scratch;
  WordCache cache;
  std::vector<Token> tokens;
  TokenParts parts;
  std::vector<uint32_t> code_points;  ///< of each byte of the text, the number of its code point
};

}  // namespace

struct TokenizerWorkspace::State {
  Memory memory;
};

TokenizerWorkspace::TokenizerWorkspace() : state_(std::make_unique<State>()) {}
TokenizerWorkspace::~TokenizerWorkspace() = default;
TokenizerWorkspace::TokenizerWorkspace(TokenizerWorkspace&&) noexcept = default;
TokenizerWorkspace& TokenizerWorkspace::operator=(TokenizerWorkspace&&) noexcept = default;

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::read(const std::string& path) {
  const auto file = MappedFile::open(path);
  return parse({file->data(), file->size()}, path);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  TokenizerJson file = parse_tokenizer_json(json, name);
  JsonFields fields(file.root, name);
  if (const std::string version = fields.string("version", "1.0"); version != "1.0") {
    fail(name, ": version: expected \"1.0\", got ", shown(version));
  }
  fields.ignore("padding");
  fields.ignore("model");
  auto parts = std::make_unique<Parts>();
  parts->model = make_model(file, name);
  if (const Json& json_part = fields.any("normalizer"); !json_part.is_null()) {
    parts->normalizer = make_normalizer(json_part, name + ": normalizer");
  }
  if (const Json& json_part = fields.any("pre_tokenizer"); !json_part.is_null()) {
    parts->pre_tokenizer = make_pre_tokenizer(json_part, name + ": pre_tokenizer");
  }
  if (const Json& json_part = fields.any("post_processor"); !json_part.is_null()) {
    parts->post_processor = make_post_processor(json_part, name + ": post_processor");
  }
  if (const Json& json_part = fields.any("decoder"); !json_part.is_null()) {
    parts->decoder = make_decoder(json_part, name + ": decoder");
  }
  parts->truncation = read_truncation(fields.any("truncation"), name + ": truncation");
  parts->added_tokens = std::make_unique<AddedTokens>(fields.any("added_tokens"), parts->model->vocabulary(),
                                                      parts->normalizer.get(), name + ": added_tokens");
  fields.done();
  return Tokenizer(std::move(parts));
}

namespace {

/// Numbers the code points of a text: for every byte the number of the one it belongs to.
void number_code_points(std::string_view text, std::vector<uint32_t>& numbers) {
  numbers.resize(text.size());
  uint32_t count = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    count += utf8_continues(text[at]) ? 0 : 1;
    numbers[at] = count - 1;
  }
}

/// Offsets in bytes as offsets in code points; what begins behind the text stays as it is.
void count_code_points(const std::vector<uint32_t>& numbers, PlacedToken& token) {
  if (token.begin >= numbers.size()) return;
  const uint32_t begin = numbers[token.begin];
  if (token.end < numbers.size()) {
    token.end = numbers[token.end];
  } else {
    const uint32_t last = token.end - 1;
    token.end = (last < numbers.size() ? numbers[last] : begin + 1) + 1;
  }
  token.begin = begin;
}

}  // namespace

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  TokenizerWorkspace workspace;
  Encoding result;
  encode(text, options, workspace, result);
  return result;
}

/// Makes the tokens of a text, piece by piece.
class PieceTokens {
 public:
  PieceTokens(const Model& model, Memory& state, bool offsets, bool blanks)
      : model_(model), state_(state), offsets_(offsets), blanks_(blanks) {}

  /// Appends the tokens of one piece to `out`.
  void add(const Piece& piece, std::vector<PlacedToken>& out) {
    if (piece.token >= 0) {
      out.push_back({static_cast<uint32_t>(piece.token), piece.original.begin, piece.original.end, piece.leading,
                     piece.trailing});
      if (offsets_) count_code_points(state_.code_points, out.back());
      return;
    }
    const std::string_view word = state_.text.text(piece);
    const uint64_t hash = hash_bytes(word);
    std::span<const Token> tokens;
    if (!state_.cache.find(word, hash, &tokens)) {
      state_.tokens.clear();
      model_.tokenize(word, state_.scratch, state_.tokens);
      state_.cache.put(word, hash, state_.tokens);
      tokens = state_.tokens;
    }
    for (const Token& token : tokens) {
      PlacedToken placed{.id = token.id};
      if (offsets_) place(piece, token, placed);
      if (blanks_) {
        const Blanks blanks = blanks_of(model_.value(token, word));
        placed.leading = blanks.leading;
        placed.trailing = blanks.trailing;
      }
      out.push_back(placed);
    }
  }

 private:
  void place(const Piece& piece, const Token& token, PlacedToken& placed) const {
    const Span origin = token.end <= piece.text.size() ? state_.text.origin(piece, token.begin, token.end)
                                                       : Span{token.begin, token.end};
    placed.begin = origin.begin;
    placed.end = origin.end;
    count_code_points(state_.code_points, placed);
  }

  const Model& model_;
  Memory& state_;
  bool offsets_, blanks_;
};

void Tokenizer::encode(std::string_view text, const EncodeOptions& options, TokenizerWorkspace& workspace,
                       Encoding& result) const {
  if (const size_t bad = utf8_first_invalid(text); bad != std::string_view::npos) {
    fail("text: byte ", bad + 1, " is not valid UTF-8");
  }
  Memory& state = workspace.state_->memory;
  const PostProcessor* processor = parts_->post_processor.get();
  state.text.reset(text);
  parts_->added_tokens->extract(state.text, parts_->normalizer.get());
  if (parts_->pre_tokenizer != nullptr) parts_->pre_tokenizer->apply(state.text);
  if (options.offsets) number_code_points(text, state.code_points);

  state.parts.resize(1);
  std::vector<PlacedToken>& tokens = state.parts[0];
  tokens.clear();
  PieceTokens pieces(*parts_->model, state, options.offsets,
                     options.offsets && processor != nullptr && processor->trims());
  std::optional<Truncation> truncation = parts_->truncation;
  if (options.max_length) {
    truncation = Truncation{.max_length = *options.max_length, .left = truncation && truncation->left};
  }
  const size_t most = truncation ? truncation->max_length : text.npos;
  if (truncation && truncation->left) {
    // No more pieces from the end than are needed.
    const auto& all = state.text.pieces();
    std::vector<std::vector<PlacedToken>> reversed;
    size_t count = 0;
    for (size_t n = all.size(); n > 0 && count < most; --n) {
      pieces.add(all[n - 1], reversed.emplace_back());
      count += reversed.back().size();
    }
    for (size_t n = reversed.size(); n > 0; --n)
      tokens.insert(tokens.end(), reversed[n - 1].begin(), reversed[n - 1].end());
  } else {
    for (const Piece& piece : state.text.pieces()) {
      pieces.add(piece, tokens);
      if (tokens.size() > most) break;
    }
  }
  if (truncation) truncation->apply(tokens, processor != nullptr && options.special_tokens ? processor->added() : 0);
  if (processor != nullptr) processor->apply(state.parts, options.special_tokens);

  result.ids.clear();
  result.offsets.clear();
  for (const auto& part : state.parts) {
    for (const PlacedToken& token : part) {
      result.ids.push_back(token.id);
      if (options.offsets) result.offsets.push_back({token.begin, token.end});
    }
  }
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool special_tokens) const {
  std::vector<std::string> tokens;
  for (const uint32_t id : ids) {
    auto token = parts_->added_tokens->decoded(id);
    if (!token) token = parts_->model->vocabulary().token(id);
    require(token.has_value(), "token id ", id, " is not in the vocabulary");
    if (special_tokens || !parts_->added_tokens->is_special(*token)) tokens.emplace_back(*token);
  }
  if (parts_->decoder != nullptr) parts_->decoder->apply(tokens);
  std::string text;
  for (size_t n = 0; n < tokens.size(); ++n) {
    if (parts_->decoder == nullptr && n > 0) text += ' ';
    text += tokens[n];
  }
  return text;
}

uint64_t Tokenizer::id_limit() const {
  return std::max(parts_->model->vocabulary().id_limit(), parts_->added_tokens->id_limit());
}

std::optional<uint32_t> Tokenizer::id(std::string_view token) const {
  if (const auto id = parts_->added_tokens->id(std::string(token))) return id;
  return parts_->model->vocabulary().id(token);
}

std::optional<std::string> Tokenizer::token(uint32_t id) const {
  auto token = parts_->added_tokens->decoded(id);
  if (!token) token = parts_->model->vocabulary().token(id);
  if (!token) return {};
  return std::string(*token);
}

bool Tokenizer::is_special(uint32_t id) const {
  const auto text = token(id);
  return text.has_value() && parts_->added_tokens->is_special(*text);
}

}  // namespace qkv
