// SPDX-License-Identifier: Apache-2.0
// Unigram: of all ways to write a piece as tokens, the one whose scores have the largest sum, by Viterbi's algorithm in
// f64. A character that no token covers alone costs 10 more than the worst token; neighbours of that kind become one.
// Of equal sums the one found first stays: from the left, and shorter tokens before longer ones.
#include <algorithm>
#include <limits>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/model.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

constexpr double kUnknownPenalty = 10;

/// Tokens by their bytes: one node for each beginning of a token, the children of a node beside each other.
class Trie {
 public:
  struct Node {
    uint32_t first = 0, count = 0;  ///< children
    uint32_t id = 0;
    bool ends = false;  ///< a token
    unsigned char label = 0;
  };

  /// `tokens` are sorted by bytes, without doubles.
  explicit Trie(const std::vector<std::pair<std::string_view, uint32_t>>& tokens) {
    nodes_.emplace_back();
    struct Open {
      size_t node, begin, end, depth;
    };
    std::vector<Open> open = {{0, 0, tokens.size(), 0}};
    for (size_t n = 0; n < open.size(); ++n) {  // breadth first, so that siblings are neighbours
      auto [node, begin, end, depth] = open[n];
      if (begin < end && tokens[begin].first.size() == depth) {
        nodes_[node].ends = depth > 0;
        nodes_[node].id = tokens[begin++].second;
      }
      nodes_[node].first = static_cast<uint32_t>(nodes_.size());
      while (begin < end) {
        const char label = tokens[begin].first[depth];
        size_t next = begin;
        while (next < end && tokens[next].first[depth] == label) ++next;
        open.push_back({nodes_.size(), begin, next, depth + 1});
        nodes_.emplace_back().label = static_cast<unsigned char>(label);
        ++nodes_[node].count;
        begin = next;
      }
    }
  }

  const Node* root() const { return nodes_.data(); }
  const Node* child(const Node* node, char byte) const {
    const auto label = static_cast<unsigned char>(byte);
    const Node* begin = nodes_.data() + node->first;
    const Node* end = begin + node->count;
    if (node->count > 8) {
      begin = std::lower_bound(begin, end, label, [](const Node& a, unsigned char b) { return a.label < b; });
      return begin < end && begin->label == label ? begin : nullptr;
    }
    for (; begin < end; ++begin) {
      if (begin->label == label) return begin;
    }
    return nullptr;
  }

 private:
  std::vector<Node> nodes_;
};

class Unigram : public Model {
 public:
  Unigram(TokenizerJson& json, JsonFields& fields) : trie_({}) {
    const std::string& where = fields.where();
    require(json.vocabulary_kind == TokenizerJson::Kind::list, where, ": expected the key \"vocab\" with a list");
    if (fields.has("unk_id")) {
      unknown_ = fields.integer("unk_id");
      require(*unknown_ < json.vocabulary.size(), where, ": unk_id: expected one of the ", json.vocabulary.size(),
              " tokens, got ", *unknown_);
    }
    fields.ignore("unk_id");
    byte_fallback_ = fields.boolean("byte_fallback", false);
    require(json.vocabulary.size() < (uint64_t{1} << 32), where, ": vocab: too many tokens");
    vocabulary_.reserve(json.vocabulary.size());
    for (const TokenizerJson::Entry& entry : json.vocabulary) {
      vocabulary_.replace(entry.token, static_cast<uint32_t>(scores_.size()));
      scores_.push_back(entry.score);
      lowest_ = std::min(lowest_, entry.score);
    }
    json.vocabulary = {};
    vocabulary_.index_ids();
    std::vector<std::pair<std::string_view, uint32_t>> tokens;
    for (uint32_t id = 0; id < scores_.size(); ++id) {
      const std::string_view token = *vocabulary_.token(id);
      if (vocabulary_.id(token) == id) tokens.emplace_back(token, id);
    }
    std::sort(tokens.begin(), tokens.end());
    trie_ = Trie(tokens);
  }

  void tokenize(std::string_view piece, ModelScratch& scratch, std::vector<Token>& out) const override {
    find_path(piece, scratch);
    // From the end to the beginning, joining unknown characters.
    auto& backwards = scratch.backwards;
    backwards.clear();
    bool joins = false;
    for (auto end = static_cast<uint32_t>(piece.size()); end > 0;) {
      const ModelScratch::Step& step = scratch.steps[end];
      const auto begin = static_cast<uint32_t>(step.from);
      const bool unknown = unknown_ && step.id == *unknown_;
      if (unknown && joins) {
        backwards.back().begin = begin;
      } else {
        backwards.push_back({step.id, begin, end});
      }
      joins = unknown;
      end = begin;
    }
    for (auto token = backwards.rbegin(); token != backwards.rend(); ++token) add(piece, *token, out);
  }

  std::string_view value(const Token& token, std::string_view piece) const override {
    if (unknown_ && token.id == *unknown_) return piece.substr(token.begin, token.end - token.begin);
    return Model::value(token, piece);
  }

 private:
  void find_path(std::string_view piece, ModelScratch& scratch) const {
    auto& steps = scratch.steps;
    steps.assign(piece.size() + 1, {0, -1, 0});
    const auto reach = [&](size_t end, size_t from, double score, uint32_t id) {
      ModelScratch::Step& step = steps[end];
      if (step.from < 0 || score > step.score) step = {score, static_cast<int64_t>(from), id};
    };
    for (size_t at = 0; at < piece.size();) {
      const size_t length = utf8_length(piece[at]);
      const double before = steps[at].score;
      bool covered = false;
      const Trie::Node* node = trie_.root();
      for (size_t end = at; end < piece.size() && (node = trie_.child(node, piece[end])) != nullptr;) {
        ++end;
        if (!node->ends) continue;
        reach(end, at, scores_[node->id] + before, node->id);
        covered = covered || end - at == length;
      }
      if (!covered) {
        require(unknown_.has_value(), "tokenizer: the text holds an unknown character, and the model has no unk_id");
        reach(at + length, at, lowest_ - kUnknownPenalty + before, *unknown_);
      }
      at += length;
    }
  }

  void add(std::string_view piece, const Token& token, std::vector<Token>& out) const {
    const std::string_view text = piece.substr(token.begin, token.end - token.begin);
    if (const auto id = vocabulary_.id(text)) return out.push_back({*id, token.begin, token.end});
    if (byte_fallback_) {
      const size_t first = out.size();
      for (const char byte : text) {
        const auto id = vocabulary_.id(byte_token(static_cast<unsigned char>(byte)));
        if (!id) break;
        out.push_back({*id, token.begin, token.end});
      }
      if (out.size() == first + text.size()) return;
      out.resize(first);
    }
    out.push_back({*unknown_, token.begin, token.end});
  }

  std::vector<double> scores_;
  double lowest_ = std::numeric_limits<double>::infinity();
  std::optional<uint32_t> unknown_;
  bool byte_fallback_ = false;
  Trie trie_;
};

}  // namespace

std::unique_ptr<Model> make_unigram(TokenizerJson& json, JsonFields& fields) {
  return std::make_unique<Unigram>(json, fields);
}

}  // namespace qkv::text
