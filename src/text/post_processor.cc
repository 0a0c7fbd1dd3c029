// SPDX-License-Identifier: Apache-2.0
#include "text/post_processor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "qkv/support/error.h"
#include "tensor/text.h"
#include "text/added_tokens.h"

namespace qkv::text {
namespace {

PlacedToken special_token(uint32_t id, const std::string& text) {
  const Blanks blanks = blanks_of(text);
  return {.id = id, .leading = blanks.leading, .trailing = blanks.trailing};
}

/// Leaves blanks out of offsets, but for one in front of the first token if a pre-tokenizer put it there.
void trim(TokenParts& parts, bool prefix) {
  for (auto& part : parts) {
    for (size_t n = 0; n < part.size(); ++n) {
      PlacedToken& token = part[n];
      if (token.leading > 0) {
        const bool first = n == 0 || token.begin == 0;
        token.begin = std::min(token.begin + (first && prefix && token.leading == 1 ? 0 : token.leading), token.end);
      }
      if (token.trailing > 0 && token.end >= token.trailing)
        token.end = std::max(token.end - token.trailing, token.begin);
    }
  }
}

class ByteLevel : public PostProcessor {
 public:
  explicit ByteLevel(JsonFields& fields)
      : trim_(fields.boolean("trim_offsets")), prefix_(fields.boolean("add_prefix_space")) {
    fields.boolean("use_regex", true);  // of use to the pre-tokenizer alone
  }
  uint32_t added() const override { return 0; }
  bool trims() const override { return trim_; }
  void apply(TokenParts& parts, bool) const override {
    if (trim_) trim(parts, prefix_);
  }

 private:
  bool trim_, prefix_;
};

/// One token before and one after; a second part and each later one gets the last token again.
class Surround : public PostProcessor {
 public:
  Surround(JsonFields& fields, bool roberta) {
    before_ = token(fields, "cls");
    after_ = token(fields, "sep");
    if (!roberta) return;
    trim_ = fields.boolean("trim_offsets");
    prefix_ = fields.boolean("add_prefix_space");
  }
  uint32_t added() const override { return 2; }
  bool trims() const override { return trim_; }
  void apply(TokenParts& parts, bool special_tokens) const override {
    if (trim_) trim(parts, prefix_);
    if (!special_tokens) return;
    for (auto& part : parts) part.push_back(after_);
    if (!parts.empty()) parts.front().insert(parts.front().begin(), before_);
  }

 private:
  static PlacedToken token(JsonFields& fields, const char* key) {
    const Json& pair = fields.list(key);
    const bool right = pair.size() == 2 && pair[0].is_string() && pair[1].is_number_unsigned() &&
                       pair[1].get<uint64_t>() <= 0xFFFFFFFF;
    require(right, fields.where(), ": ", key, ": expected a token and its id");
    return special_token(pair[1].get<uint32_t>(), pair[0].get<std::string>());
  }
  PlacedToken before_, after_;
  bool trim_ = false, prefix_ = false;
};

class Template : public PostProcessor {
 public:
  explicit Template(JsonFields& fields) {
    const std::string where = fields.where() + ": special_tokens";
    for (const auto& item : fields.object("special_tokens").items()) {
      special_[item.key()] = read_special(item.value(), concat(where, ": ", in_quotes(item.key())));
    }
    single_ = read_template(fields.list("single"), fields.where() + ": single", 1);
    pair_ = read_template(fields.list("pair"), fields.where() + ": pair", 2);
  }
  uint32_t added() const override {
    size_t count = 0;
    for (const Step& step : single_) count += step.special.size();
    return static_cast<uint32_t>(count);
  }
  void apply(TokenParts& parts, bool special_tokens) const override {
    require(parts.size() == 1 || parts.size() == 2,
            "tokenizer: a template takes one or two parts, the processors before it "
            "made ",
            parts.size());
    TokenParts result;
    for (const Step& step : parts.size() == 1 ? single_ : pair_) {
      if (step.special.empty()) {
        result.push_back(parts[step.part]);
      } else if (special_tokens) {
        result.push_back(step.special);
      }
    }
    parts = std::move(result);
  }

 private:
  struct Step {
    size_t part = 0;
    std::vector<PlacedToken> special;  ///< instead of the part when there are any
  };

  static std::vector<PlacedToken> read_special(const Json& json, const std::string& where) {
    JsonFields fields(json, where);
    fields.string("id");
    const Json& ids = fields.list("ids");
    const Json& texts = fields.list("tokens");
    fields.done();
    require(!ids.empty() && ids.size() == texts.size(), where, ": expected as many tokens as ids, and some");
    std::vector<PlacedToken> tokens;
    for (size_t n = 0; n < ids.size(); ++n) {
      const bool right = ids[n].is_number_unsigned() && ids[n].get<uint64_t>() <= 0xFFFFFFFF && texts[n].is_string();
      require(right, where, ": expected ids and tokens, got ", shown(ids[n]), " and ", shown(texts[n]));
      tokens.push_back(special_token(ids[n].get<uint32_t>(), texts[n].get<std::string>()));
    }
    return tokens;
  }

  std::vector<Step> read_template(const Json& list, const std::string& where, size_t parts) {
    std::vector<Step> steps;
    for (const Json& item : list) {
      JsonFields fields(item, where);
      const bool sequence = item.contains("Sequence");
      JsonFields inner(fields.object(sequence ? "Sequence" : "SpecialToken"), where);
      fields.done();
      const std::string id = inner.string("id");
      inner.integer("type_id");
      inner.done();
      Step step;
      if (sequence) {
        step.part = static_cast<size_t>(choose(id, {"A", "B"}, where + ": Sequence: id"));
        require(step.part < parts, where, ": speaks of a sequence B, and there is one sequence");
      } else {
        const auto place = special_.find(id);
        require(place != special_.end(), where, ": ", in_quotes(id), " is not among the special_tokens");
        step.special = place->second;
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  std::map<std::string, std::vector<PlacedToken>> special_;
  std::vector<Step> single_, pair_;
};

class Sequence : public PostProcessor {
 public:
  explicit Sequence(JsonFields& fields) {
    int number = 0;
    for (const Json& part : fields.list("processors")) {
      parts_.push_back(make_post_processor(part, concat(fields.where(), ": ", number++)));
    }
  }
  uint32_t added() const override {
    uint32_t count = 0;
    for (const auto& part : parts_) count += part->added();
    return count;
  }
  bool trims() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->trims(); });
  }
  void apply(TokenParts& parts, bool special_tokens) const override {
    for (const auto& part : parts_) part->apply(parts, special_tokens);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> parts_;
};

std::unique_ptr<PostProcessor> make(int kind, JsonFields& fields) {
  switch (kind) {
    case 0: return std::make_unique<Surround>(fields, true);
    case 1: return std::make_unique<Surround>(fields, false);
    case 2: return std::make_unique<ByteLevel>(fields);
    case 3: return std::make_unique<Template>(fields);
    default: return std::make_unique<Sequence>(fields);
  }
}

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const Json& json, const std::string& where) {
  JsonFields untyped(json, where);
  const std::string type = untyped.string("type");
  const int kind = choose(type, {"RobertaProcessing", "BertProcessing", "ByteLevel", "TemplateProcessing", "Sequence"},
                          where + ": type");
  JsonFields fields(json, where + ": " + type);
  fields.ignore("type");
  auto processor = make(kind, fields);
  fields.done();
  return processor;
}

}  // namespace qkv::text
