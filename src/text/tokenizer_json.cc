// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <array>
#include <charconv>
#include <limits>

#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv::text {
namespace {

constexpr size_t kDeepest = 32;

/// The events of nlohmann's SAX interface; its names are fixed.
class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(const std::string& name) : name_(name) {}
  TokenizerJson take() { return std::move(result_); }

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool is) override { return value(is, is ? "true" : "false"); }
  bool number_integer(number_integer_t number) override {
    if (in_score()) return score(static_cast<double>(number));
    return value(number, std::to_string(number));
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (in_score()) return score(static_cast<double>(number));
    if (place_ == Place::vocabulary && result_.vocabulary_kind == TokenizerJson::Kind::object && inner_ == 1) {
      require(number <= std::numeric_limits<uint32_t>::max(), name_, ": model: vocab: ", in_quotes(key_),
              ": expected an id below 2^32, got ", number);
      result_.vocabulary.push_back({key_, static_cast<uint32_t>(number), 0});
      return true;
    }
    return value(number, std::to_string(number));
  }
  bool number_float(number_float_t number, const string_t& text) override {
    if (in_score()) return score(number_from_text(text));
    return value(number, text);
  }
  bool binary(binary_t&) override { return value(nullptr, "binary"); }

  bool string(string_t& text) override {
    if (place_ == Place::merges && inner_ == 1) {
      merge_line(text);
    } else if (place_ == Place::merges && inner_ == 2 && count_ < 2) {
      auto& [first, second] = result_.merges.back();
      (count_++ == 0 ? first : second) = text;
    } else if (place_ == Place::vocabulary && in_pair() && count_ == 0) {
      result_.vocabulary.back().token = text;
      count_ = 1;
    } else {
      return value(text, in_quotes(text));
    }
    return true;
  }

  bool key(string_t& text) override {
    key_ = text;
    if (place_ == Place::elsewhere && !stack_.back()->emplace(text, nullptr).second) {
      fail(name_, ": the key ", in_quotes(text), " occurs twice");
    }
    if (stack_.size() == 1) top_key_ = text;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ != Place::elsewhere) refuse("an object");
    if (enters("vocab", Place::vocabulary)) {
      result_.vocabulary_kind = TokenizerJson::Kind::object;
      return true;
    }
    return open(Json::object());
  }
  bool start_array(size_t) override {
    if (place_ == Place::elsewhere) {
      if (enters("vocab", Place::vocabulary)) {
        result_.vocabulary_kind = TokenizerJson::Kind::list;
        return true;
      }
      if (enters("merges", Place::merges)) {
        result_.has_merges = true;
        return true;
      }
      require(!stack_.empty(), name_, ": expected a JSON object, got a list");
      return open(Json::array());
    }
    const bool ids = place_ == Place::vocabulary && result_.vocabulary_kind == TokenizerJson::Kind::object;
    if (inner_ != 1 || ids) refuse("a list");
    ++inner_;
    count_ = 0;
    if (place_ == Place::merges) result_.merges.emplace_back();
    if (place_ == Place::vocabulary) result_.vocabulary.emplace_back();
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(size_t position, const std::string& last, const Json::exception&) override {
    fail(name_, ": not valid JSON at byte ", position, ", near ", in_quotes(last));
  }

 private:
  enum class Place : uint8_t { elsewhere, vocabulary, merges };

  /// Whether this container is model.<key>; then what it holds goes to `place`.
  bool enters(const char* key, Place place) {
    if (stack_.size() != 2 || top_key_ != "model" || key_ != key || !stack_.back()->is_object()) return false;
    stack_.back()->erase(key_);
    const bool again =
        place == Place::merges ? result_.has_merges : result_.vocabulary_kind != TokenizerJson::Kind::absent;
    require(!again, name_, ": the key ", in_quotes(key_), " occurs twice");
    place_ = place;
    inner_ = 1;
    return true;
  }
  bool in_pair() const { return inner_ == 2 && result_.vocabulary_kind == TokenizerJson::Kind::list; }
  bool in_score() const { return place_ == Place::vocabulary && in_pair() && count_ == 1; }
  bool score(double number) {
    result_.vocabulary.back().score = number;
    count_ = 2;
    return true;
  }

  void merge_line(const std::string& line) {
    if (line.starts_with("#version")) return;
    const size_t blank = line.find(' ');
    if (blank == line.npos || line.find(' ', blank + 1) != line.npos) {
      fail(name_, ": model: merges: expected two tokens with a blank between, got ", in_quotes(line));
    }
    result_.merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
  }

  template <class T>
  bool value(T&& scalar, const std::string& text) {
    if (place_ != Place::elsewhere) refuse(text);
    require(!stack_.empty(), name_, ": expected a JSON object, got ", text);
    add(std::forward<T>(scalar));
    return true;
  }
  [[noreturn]] void refuse(const std::string& came) const {
    if (place_ == Place::merges) fail(name_, ": model: merges: expected pairs of tokens, got ", came);
    fail(name_, ": model: vocab: expected ",
         result_.vocabulary_kind == TokenizerJson::Kind::object ? "tokens with ids" : "pairs of a token and a score",
         ", got ", came);
  }

  template <class T>
  Json* add(T&& item) {
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::forward<T>(item));
      return &parent.back();
    }
    Json& place = parent[key_];
    place = std::forward<T>(item);
    return &place;
  }
  bool open(Json container) {
    require(stack_.size() < kDeepest, name_, ": nested more than ", kDeepest, " deep");
    if (stack_.empty()) {
      result_.root = std::move(container);
      stack_.push_back(&result_.root);
    } else {
      stack_.push_back(add(std::move(container)));
    }
    return true;
  }
  bool close() {
    if (place_ == Place::elsewhere) {
      stack_.pop_back();
      return true;
    }
    if (inner_ == 2 && count_ != 2) refuse("a list that is no such pair");
    if (--inner_ == 0) place_ = Place::elsewhere;
    return true;
  }

  const std::string& name_;
  TokenizerJson result_;
  std::vector<Json*> stack_;  ///< containers of the JSON that is kept; a parent grows only when they are closed
  std::string key_, top_key_;
  Place place_ = Place::elsewhere;
  int inner_ = 0;  ///< containers open inside the vocabulary or the merges, its own one included
  int count_ = 0;  ///< elements seen of a pair
};

double power_of_ten(int exponent) {
  static const auto powers = [] {
    std::array<double, 309> table{};
    for (size_t n = 0; n < table.size(); ++n) {
      const std::string text = "1e" + std::to_string(n);
      std::from_chars(text.data(), text.data() + text.size(), table[n]);
    }
    return table;
  }();
  return powers[static_cast<size_t>(exponent)];
}

double scaled(uint64_t digits, int64_t exponent) {
  auto result = static_cast<double>(digits);
  while (exponent < -308 && result != 0) {
    result /= 1e308;
    exponent += 308;
  }
  if (result == 0) return 0;
  if (exponent > 308) return std::numeric_limits<double>::infinity();
  return exponent >= 0 ? result * power_of_ten(static_cast<int>(exponent))
                       : result / power_of_ten(static_cast<int>(-exponent));
}

}  // namespace

double number_from_text(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool full = false, fraction = false;
  size_t at = 0;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      full = full && fraction;  // digits that did not fit before the point leave it to the next to say so again
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[at] - '0');
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
    full = full || digits > kMost / 10 || (digits == kMost / 10 && digit > kMost % 10);
    if (!full) digits = digits * 10 + digit;
    if (fraction != full) exponent += fraction ? -1 : 1;  // dropped in front, or kept behind the point
  }
  if (at < text.size()) {
    int64_t written = 0;
    const char* begin = text.data() + at + 1;
    if (*begin == '+') ++begin;
    const auto [end, code] = std::from_chars(begin, text.data() + text.size(), written);
    if (code != std::errc()) written = *begin == '-' ? -1'000'000 : 1'000'000;
    exponent += written;
  }
  const double result = scaled(digits, exponent);
  return negative ? -result : result;
}

TokenizerJson parse_tokenizer_json(std::string_view json, const std::string& name) {
  // The JSON reader would skip a byte order mark; the format has none.
  require(json.substr(0, 3) != "\xEF\xBB\xBF", name, ": starts with a byte order mark, expected '{'");
  Reader reader(name);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace qkv::text
