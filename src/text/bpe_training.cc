// SPDX-License-Identifier: Apache-2.0
// Each different word is kept once, with how often it came, as a list of tokens. For every pair of neighbours there is
// its count and the words it is in; a heap gives the most frequent pair. A merge touches only the words of its pair, so
// the work is about the length of the different words, times the logarithm of how many pairs there are.
#include "qkv/text/bpe_training.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "qkv/support/error.h"
#include "tensor/file_writer.h"
#include "tensor/mapped_file.h"
#include "tensor/text.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/vocabulary.h"

namespace qkv {

using namespace text;

namespace {

using Pair = uint64_t;  ///< two tokens, the first in the upper half
Pair pair_of(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

struct PairRecord {
  int64_t count = 0;
  std::vector<uint32_t> words;  ///< that have or had it; some more than once
};

struct Candidate {
  int64_t count;
  Pair pair;
  /// The order of the heap: what is frequent, and of equals the smaller, is on top.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

}  // namespace

struct BpeTrainer::State {
  std::unique_ptr<Pattern> pattern = byte_level_pattern();
  Vocabulary numbers;  ///< of words
  std::vector<int64_t> counts;
  std::vector<std::string> specials, tokens;  ///< tokens by id
  std::vector<std::pair<uint32_t, uint32_t>> merged;
  bool trained = false;

  // Of train() alone.
  std::vector<uint32_t> symbols, begins, lengths, visited;
  std::unordered_map<Pair, PairRecord> pairs;
  std::vector<Candidate> heap;

  void start(const std::vector<std::string>& special_tokens);
  void spell_words();
  void count_pairs();
  void merge(Pair pair, uint32_t id, std::vector<Pair>& fresh);
  void merge_in_word(uint32_t word, Pair pair, uint32_t id, std::vector<Pair>& fresh);
  void change(uint32_t first, uint32_t second, int64_t by, uint32_t word, std::vector<Pair>& fresh);
  void offer(Pair pair, int64_t count) {
    heap.push_back({count, pair});
    std::push_heap(heap.begin(), heap.end());
  }
};

BpeTrainer::BpeTrainer() : state_(std::make_unique<State>()) {}
BpeTrainer::~BpeTrainer() = default;
BpeTrainer::BpeTrainer(BpeTrainer&&) noexcept = default;
BpeTrainer& BpeTrainer::operator=(BpeTrainer&&) noexcept = default;

void BpeTrainer::add(std::string_view text, const std::string& name) {
  std::vector<Match> matches;
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view words = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    text.remove_prefix(words.size());
    if (const size_t bad = utf8_first_invalid(words); bad != words.npos) {
      fail(name, ": line ", line, ": byte ", bad + 1, " is not valid UTF-8");
    }
    matches.clear();
    state_->pattern->find(words, matches);
    for (const Match& match : matches) {
      const std::string_view word = words.substr(match.begin, match.end - match.begin);
      const auto number = state_->numbers.id(word);
      if (number) {
        ++state_->counts[*number];
      } else {
        require(state_->counts.size() < (uint64_t{1} << 32) - 1, name, ": too many different words");
        state_->numbers.add(word, static_cast<uint32_t>(state_->counts.size()));
        state_->counts.push_back(1);
      }
    }
  }
}

void BpeTrainer::add_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  add({file->data(), file->size()}, path);
}

void BpeTrainer::State::start(const std::vector<std::string>& special_tokens) {
  for (const std::string& special : special_tokens) {
    require(!special.empty() && utf8_first_invalid(special) == std::string::npos,
            "train: a special token must be valid UTF-8 and not empty");
    require(std::count(specials.begin(), specials.end(), special) == 0, "train: the special token ", in_quotes(special),
            " is given twice");
    require(utf8_count(special) > 1 || !byte_of_character(utf8_decode(special.data())), "train: the special token ",
            in_quotes(special), " is the token of a byte");
    specials.push_back(special);
  }
  tokens = specials;
  std::vector<char32_t> alphabet(byte_characters().begin(), byte_characters().end());
  std::sort(alphabet.begin(), alphabet.end());
  for (const char32_t c : alphabet) utf8_append(tokens.emplace_back(), c);
}

void BpeTrainer::State::spell_words() {
  std::vector<uint32_t> byte_ids(256);
  for (size_t id = specials.size(); id < tokens.size(); ++id) {
    byte_ids[*byte_of_character(utf8_decode(tokens[id].data()))] = static_cast<uint32_t>(id);
  }
  numbers.index_ids();
  for (uint32_t word = 0; word < counts.size(); ++word) {
    const std::string_view bytes = *numbers.token(word);
    require(symbols.size() + bytes.size() < (uint64_t{1} << 32), "train: the different words are too long together");
    begins.push_back(static_cast<uint32_t>(symbols.size()));
    lengths.push_back(static_cast<uint32_t>(bytes.size()));
    for (const char byte : bytes) symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
  }
  visited.assign(counts.size(), 0);
}

void BpeTrainer::State::count_pairs() {
  for (uint32_t word = 0; word < counts.size(); ++word) {
    const uint32_t* symbol = symbols.data() + begins[word];
    for (uint32_t n = 1; n < lengths[word]; ++n) {
      PairRecord& record = pairs[pair_of(symbol[n - 1], symbol[n])];
      record.count += counts[word];
      if (record.words.empty() || record.words.back() != word) record.words.push_back(word);
    }
  }
  for (const auto& [pair, record] : pairs) heap.push_back({record.count, pair});
  std::make_heap(heap.begin(), heap.end());
}

void BpeTrainer::State::change(uint32_t first, uint32_t second, int64_t by, uint32_t word, std::vector<Pair>& fresh) {
  const Pair pair = pair_of(first, second);
  PairRecord& record = pairs[pair];
  record.count += by;
  if (by < 0) return;
  if (record.words.empty() || record.words.back() != word) record.words.push_back(word);
  fresh.push_back(pair);
}

void BpeTrainer::State::merge_in_word(uint32_t word, Pair pair, uint32_t id, std::vector<Pair>& fresh) {
  const auto first = static_cast<uint32_t>(pair >> 32), second = static_cast<uint32_t>(pair);
  uint32_t* symbol = symbols.data() + begins[word];
  const uint32_t length = lengths[word];
  const int64_t count = counts[word];
  uint32_t kept = 0;  // symbols of the new word, in the place of the old
  for (uint32_t n = 0; n < length;) {
    if (n + 1 == length || symbol[n] != first || symbol[n + 1] != second) {
      symbol[kept++] = symbol[n++];
      continue;
    }
    n += 2;
    if (kept > 0) {
      change(symbol[kept - 1], first, -count, word, fresh);
      change(symbol[kept - 1], id, count, word, fresh);
    }
    if (n < length) {
      change(second, symbol[n], -count, word, fresh);
      change(id, symbol[n], count, word, fresh);
    }
    symbol[kept++] = id;
  }
  lengths[word] = kept;
}

void BpeTrainer::State::merge(Pair pair, uint32_t id, std::vector<Pair>& fresh) {
  const std::vector<uint32_t> words = std::move(pairs[pair].words);
  const auto now = static_cast<uint32_t>(merged.size());
  for (const uint32_t word : words) {
    if (std::exchange(visited[word], now) != now) merge_in_word(word, pair, id, fresh);
  }
  pairs.erase(pair);
  std::sort(fresh.begin(), fresh.end());
  fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
}

void BpeTrainer::train(int64_t vocabulary, const std::vector<std::string>& special_tokens) {
  State& state = *state_;
  require(!std::exchange(state.trained, true), "train: may be called once");
  state.start(special_tokens);
  require(vocabulary >= this->vocabulary() && vocabulary < (int64_t{1} << 31),
          "train: expected a vocabulary of at least ", this->vocabulary(),
          ", the bytes and the special tokens, and below 2^31, got ", vocabulary);
  state.spell_words();
  state.count_pairs();
  std::unordered_map<std::string, uint32_t> ids;
  for (size_t id = 0; id < state.tokens.size(); ++id) ids[state.tokens[id]] = static_cast<uint32_t>(id);
  std::vector<Pair> fresh;
  while (this->vocabulary() < vocabulary && !state.heap.empty()) {
    std::pop_heap(state.heap.begin(), state.heap.end());
    const Candidate top = state.heap.back();
    state.heap.pop_back();
    const auto place = state.pairs.find(top.pair);
    const int64_t count = place == state.pairs.end() ? 0 : place->second.count;
    if (count < top.count) {  // it has become rarer since
      if (count > 0) state.offer(top.pair, count);
      continue;
    }
    const auto first = static_cast<uint32_t>(top.pair >> 32), second = static_cast<uint32_t>(top.pair);
    const std::string token = state.tokens[first] + state.tokens[second];
    const auto [known, is_new] = ids.emplace(token, static_cast<uint32_t>(state.tokens.size()));
    if (is_new) state.tokens.push_back(token);
    state.merged.emplace_back(first, second);
    fresh.clear();
    state.merge(top.pair, known->second, fresh);
    for (const Pair pair : fresh) {
      const auto created = state.pairs.find(pair);
      if (created != state.pairs.end() && created->second.count > 0) state.offer(pair, created->second.count);
    }
  }
}

int64_t BpeTrainer::words() const { return static_cast<int64_t>(state_->counts.size()); }
int64_t BpeTrainer::vocabulary() const { return static_cast<int64_t>(state_->tokens.size()); }
int64_t BpeTrainer::merges() const { return static_cast<int64_t>(state_->merged.size()); }

std::string BpeTrainer::json() const {
  using Json = nlohmann::ordered_json;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  Json added = Json::array();
  for (const std::string& special : state_->specials) {
    added.push_back({{"id", added.size()},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  Json vocabulary = Json::object(), merges = Json::array();
  // Tokens are distinct, so they are put at the end without a search.
  auto& entries = vocabulary.get_ref<Json::object_t&>();
  for (size_t id = 0; id < state_->tokens.size(); ++id) entries.emplace_back(state_->tokens[id], id);
  for (const auto& [first, second] : state_->merged) {
    merges.push_back(state_->tokens[first] + " " + state_->tokens[second]);
  }
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", std::move(vocabulary)},
                      {"merges", std::move(merges)}};
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", byte_level},
                     {"decoder", byte_level},
                     {"model", std::move(model)}};
  return file.dump(1) + "\n";
}

void BpeTrainer::write(const std::string& path) const {
  FileWriter file(path);
  file.append(json());
  file.commit();
}

}  // namespace qkv
