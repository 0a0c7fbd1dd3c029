// SPDX-License-Identifier: Apache-2.0
#include "text/pattern.h"

#include <oniguruma.h>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/simple_regex.h"

namespace qkv::text {
namespace {

class LiteralPattern : public Pattern {
 public:
  explicit LiteralPattern(const std::string& text) : wanted_(text) {}

  void find(std::string_view text, std::vector<Match>& out) const override {
    size_t begin = 0;
    for (size_t at = text.find(wanted_); at != text.npos; at = text.find(wanted_, begin)) {
      if (begin < at) out.push_back({begin, at, false});
      begin = at + wanted_.size();
      out.push_back({at, begin, true});
    }
    if (begin < text.size()) out.push_back({begin, text.size(), false});
  }

 private:
  std::string wanted_;
};

std::string message_of(int code, const OnigErrorInfo* info = nullptr) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(text, code, info);
  return {reinterpret_cast<const char*>(text), static_cast<size_t>(length)};
}

class RegexPattern : public Pattern {
 public:
  RegexPattern(const std::string& expression, const std::string& where) : where_(where) {
    static const int ready = [] {
      OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
      return onig_initialize(encodings, 1);
    }();
    require(ready == ONIG_NORMAL, where, ": Oniguruma cannot start: ", message_of(ready));
    const auto* begin = reinterpret_cast<const OnigUChar*>(expression.data());
    OnigErrorInfo info;
    const int code = onig_new(&regex_, begin, begin + expression.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                              ONIG_SYNTAX_DEFAULT, &info);
    if (code != ONIG_NORMAL) {
      fail(where, ": expected a regular expression, got ", in_quotes(expression), ": ",
           in_quotes(message_of(code, &info)));
    }
  }
  ~RegexPattern() override { onig_free(regex_); }
  RegexPattern(const RegexPattern&) = delete;
  RegexPattern& operator=(const RegexPattern&) = delete;

  void find(std::string_view text, std::vector<Match>& out) const override {
    const Search search;
    size_t from = 0, begin = 0, last_end = text.npos;
    while (from <= text.size()) {
      size_t first = 0, end = 0;
      if (!search_from(search, text, from, &first, &end)) break;
      if (first == end && end == last_end) {  // no empty match right behind another match
        from += from < text.size() ? utf8_length(text[from]) : 1;
        continue;
      }
      if (begin < first) out.push_back({begin, first, false});
      out.push_back({first, end, true});
      begin = last_end = from = end;
    }
    if (begin < text.size()) out.push_back({begin, text.size(), false});
  }

 private:
  struct Search {
    OnigRegion* region = onig_region_new();
    OnigMatchParam* limits = onig_new_match_param();
    Search() {
      onig_initialize_match_param(limits);
      onig_set_retry_limit_in_match_of_match_param(limits, kMatchSteps);
      onig_set_retry_limit_in_search_of_match_param(limits, kSearchSteps);
    }
    ~Search() {
      onig_free_match_param(limits);
      onig_region_free(region, 1);
    }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
  };

  bool search_from(const Search& search, std::string_view text, size_t from, size_t* begin, size_t* end) const {
    const auto* first = reinterpret_cast<const OnigUChar*>(text.data());
    const OnigUChar* last = first + text.size();
    const int found =
        onig_search_with_param(regex_, first, last, first + from, last, search.region, ONIG_OPTION_NONE, search.limits);
    if (found == ONIG_MISMATCH) return false;
    if (found < 0) fail(where_, ": the regular expression took too many steps: ", message_of(found));
    *begin = static_cast<size_t>(search.region->beg[0]);
    *end = static_cast<size_t>(search.region->end[0]);
    return true;
  }

  std::string where_;
  regex_t* regex_ = nullptr;
};

}  // namespace

std::unique_ptr<Pattern> literal_pattern(const std::string& text) { return std::make_unique<LiteralPattern>(text); }

std::unique_ptr<Pattern> regex_pattern(const std::string& expression, const std::string& where) {
  if (auto simple = simple_pattern(expression, where)) return simple;
  return oniguruma_pattern(expression, where);
}

std::unique_ptr<Pattern> oniguruma_pattern(const std::string& expression, const std::string& where) {
  return std::make_unique<RegexPattern>(expression, where);
}

std::unique_ptr<Pattern> byte_level_pattern() {
  return regex_pattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "ByteLevel");
}

std::unique_ptr<Pattern> make_pattern(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  const bool literal = fields.has("String");
  const std::string text = fields.string(literal ? "String" : "Regex");
  fields.done();
  return literal && !text.empty() ? literal_pattern(text) : regex_pattern(text, where);
}

}  // namespace qkv::text
