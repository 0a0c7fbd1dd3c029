// SPDX-License-Identifier: Apache-2.0
#include "text/simple_regex.h"

#include "qkv/support/error.h"
#include "text/simple_regex_program.h"

namespace qkv::text {
namespace {

/// A choice that can be taken back: go on at `instruction`, from `at`. A repetition may also end earlier, down to
/// `least`.
struct Choice {
  size_t instruction, at, least;
};

class Matcher {
 public:
  Matcher(const RegexProgram& program, std::string_view text, const std::string& where)
      : program_(program), text_(text), where_(where) {}

  /// Matches at `at`, from an instruction on; the end of the match.
  std::optional<size_t> match(size_t instruction, size_t at) {
    const size_t first = choices_.size();
    const auto end = run(instruction, at, first);
    choices_.resize(first);
    return end;
  }
  void begin_place() { steps_ = 0; }
  void begin_search() { search_steps_ = 0; }

 private:
  std::optional<size_t> run(size_t pc, size_t at, size_t first) {
    while (true) {
      const Instruction& now = program_.instructions[pc];
      bool goes_on = true;
      ++pc;
      switch (now.kind) {
        case Instruction::Kind::match: return at;
        case Instruction::Kind::jump: pc = now.target; break;
        case Instruction::Kind::branch: choices_.push_back({now.target, at, at}); break;
        case Instruction::Kind::ahead:
        case Instruction::Kind::not_ahead:
          goes_on = match(pc, at).has_value() == (now.kind == Instruction::Kind::ahead);
          pc = now.target;
          break;
        case Instruction::Kind::repeat:
        case Instruction::Kind::possessive: goes_on = repeat(now, pc, &at); break;
      }
      if (goes_on) continue;
      if (!take_back(&pc, &at, first)) return {};
    }
  }

  bool repeat(const Instruction& now, size_t next, size_t* at) {
    const CharacterSet& set = program_.sets[now.set];
    uint32_t count = 0;
    size_t end = *at, least = *at;
    while (count < now.most && end < text_.size() && set.has(utf8_decode(text_.data() + end))) {
      end += utf8_length(text_[end]);
      if (++count == now.least) least = end;
    }
    if (count < now.least) return false;
    if (count > now.least && now.kind == Instruction::Kind::repeat) choices_.push_back({next, end, least});
    *at = end;
    return true;
  }

  bool take_back(size_t* pc, size_t* at, size_t first) {
    if (choices_.size() == first) return false;
    if (++steps_ > kMatchSteps || ++search_steps_ > kSearchSteps)
      fail(where_, ": the regular expression took too many steps");
    Choice& last = choices_.back();
    *pc = last.instruction;
    if (last.at > last.least) utf8_before(text_, last.at, &last.at);  // a repetition gives one character back
    *at = last.at;
    if (last.at == last.least) choices_.pop_back();
    return true;
  }

  const RegexProgram& program_;
  std::string_view text_;
  const std::string& where_;
  std::vector<Choice> choices_;
  long steps_ = 0, search_steps_ = 0;
};

class SimplePattern : public Pattern {
 public:
  SimplePattern(RegexProgram program, const std::string& where) : program_(std::move(program)), where_(where) {}

  void find(std::string_view text, std::vector<Match>& out) const override {
    Matcher matcher(program_, text, where_);
    size_t begin = 0, last_end = text.npos;
    for (size_t at = 0; at <= text.size();) {
      matcher.begin_place();
      const auto end = matcher.match(0, at);
      if (!end || (*end == at && at == last_end)) {  // no empty match right behind another match
        at += at < text.size() ? utf8_length(text[at]) : 1;
        continue;
      }
      if (begin < at) out.push_back({begin, at, false});
      out.push_back({at, *end, true});
      at = begin = last_end = *end;
      matcher.begin_search();
    }
    if (begin < text.size()) out.push_back({begin, text.size(), false});
  }

 private:
  RegexProgram program_;
  std::string where_;
};

}  // namespace

std::unique_ptr<Pattern> simple_pattern(const std::string& expression, const std::string& where) {
  auto program = compile_simple(expression);
  if (!program) return nullptr;
  return std::make_unique<SimplePattern>(std::move(*program), where);
}

}  // namespace qkv::text
