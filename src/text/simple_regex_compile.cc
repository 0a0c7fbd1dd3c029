// SPDX-License-Identifier: Apache-2.0
// Recursive descent over the expression, straight to instructions. Whatever is not known, or could mean something else
// to Oniguruma, makes the expression not simple.
#include <charconv>

#include "text/simple_regex_program.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

constexpr uint32_t kUnbounded = ~0U;
constexpr uint32_t kMostRepeats = 1000;
constexpr size_t kMostInstructions = 10'000;

struct NotSimple {};

std::optional<uint32_t> property(std::string_view name) {
  constexpr std::pair<std::string_view, uint32_t> kNames[] = {
      {"L", kLetter},          {"Lu", kUpperLetter}, {"Ll", kLowerLetter}, {"Lt", kTitleLetter},
      {"Lm", kModifierLetter}, {"Lo", kOtherLetter}, {"N", kNumber},       {"M", kMark},
      {"P", kPunctuationMark}, {"S", kSymbol}};
  for (const auto& [known, classes] : kNames) {
    if (name == known) return classes;
  }
  return {};
}

class Compiler {
 public:
  explicit Compiler(const std::string& text) : text_(text) {}

  RegexProgram compile() {
    choice();
    if (at_ < text_.size()) throw NotSimple();
    emit({.kind = Instruction::Kind::match});
    return std::move(program_);
  }

 private:
  using Kind = Instruction::Kind;

  bool more() const { return at_ < text_.size(); }
  char peek() const { return more() ? text_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }
  char32_t take_character() {
    if (!more()) throw NotSimple();
    const char32_t c = utf8_decode(text_.data() + at_);
    at_ += utf8_length(text_[at_]);
    return c;
  }

  size_t here() const { return program_.instructions.size(); }
  size_t emit(Instruction instruction) {
    if (here() >= kMostInstructions) throw NotSimple();
    program_.instructions.push_back(instruction);
    return here() - 1;
  }
  void aim(size_t instruction) { program_.instructions[instruction].target = here(); }
  void insert_branch(size_t before) {
    auto& all = program_.instructions;
    if (here() >= kMostInstructions) throw NotSimple();
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(before), {.kind = Kind::branch});
    for (size_t n = before + 1; n < all.size(); ++n) {
      if (all[n].target >= before && all[n].kind != Kind::repeat && all[n].kind != Kind::possessive) ++all[n].target;
    }
  }

  /// Alternatives, the first one first. Returns whether it can match nothing.
  bool choice() {
    if (++depth_ > 50) throw NotSimple();
    const size_t begin = here();
    bool empty = sequence();
    std::vector<size_t> ends;
    size_t last = begin;
    while (take("|")) {
      insert_branch(last);
      for (size_t& end : ends) end += end >= last;
      ends.push_back(emit({.kind = Kind::jump}));
      aim(last);
      last = here();
      empty = sequence() || empty;
    }
    for (const size_t end : ends) aim(end);
    --depth_;
    return empty;
  }

  bool sequence() {
    bool empty = true;
    while (more() && peek() != '|' && peek() != ')') empty = item() && empty;
    return empty;
  }

  /// One atom and how often it comes. Returns whether it can match nothing.
  bool item() {
    const size_t begin = here();
    if (take("(?=")) return look_ahead(Kind::ahead);
    if (take("(?!")) return look_ahead(Kind::not_ahead);
    if (peek() != '(') {
      CharacterSet set = one_character();
      set.finish();
      program_.sets.push_back(std::move(set));
      const auto [least, most] = count();
      const bool possessive = repeated_ && take("+");
      if (possessive && counted_) throw NotSimple();  // there it is another repetition
      refuse_more();
      emit({.kind = possessive ? Kind::possessive : Kind::repeat,
            .least = least,
            .most = most,
            .set = program_.sets.size() - 1});
      return least == 0;
    }
    const bool empty = group();
    const auto [least, most] = count();
    refuse_more();
    return repeat_group(begin, empty, least, most);
  }

  bool look_ahead(Kind kind) {
    const size_t begin = emit({.kind = kind});
    choice();
    if (!take(")")) throw NotSimple();
    emit({.kind = Kind::match});
    aim(begin);
    if (more() && std::string_view("?*+{").find(peek()) != std::string_view::npos) throw NotSimple();
    return true;
  }

  bool group() {
    const bool outer = ignore_case_;
    if (take("(?i:")) {
      ignore_case_ = true;
    } else if (!take("(?:")) {
      if (!take("(") || peek() == '?' || peek() == '*') throw NotSimple();
    }
    const size_t begin = at_;
    const bool empty = choice();
    if (!take(")")) throw NotSimple();
    if (ignore_case_ && !outer) refuse_ligatures(std::string_view(text_).substr(begin, at_ - begin));
    ignore_case_ = outer;
    return empty;
  }

  /// Two letters that some one letter is the lower case of: no sequence of single characters is equal to them.
  static void refuse_ligatures(std::string_view text) {
    const auto lower = [&](size_t n) { return static_cast<char>(text[n] | 0x20); };
    for (size_t n = 0; n + 1 < text.size(); ++n) {
      const char pair[] = {lower(n), lower(n + 1), '\0'};
      for (const char* ligature : {"ss", "st", "ff", "fi", "fl"}) {
        if (std::string_view(pair) == ligature) throw NotSimple();
      }
    }
  }

  bool repeat_group(size_t begin, bool empty, uint32_t least, uint32_t most) {
    if (least == 1 && most == 1) return empty;
    if (most != 1 && empty) throw NotSimple();  // a loop over nothing
    if (least > 1 || (most > 1 && most != kUnbounded)) throw NotSimple();
    if (least == 1) {  // +: back to the beginning, or on
      const size_t branch = emit({.kind = Kind::branch});
      emit({.kind = Kind::jump, .target = begin});
      aim(branch);
      return false;
    }
    insert_branch(begin);
    if (most == kUnbounded) emit({.kind = Kind::jump, .target = begin});
    aim(begin);
    return true;
  }

  /// How often the atom before comes.
  std::pair<uint32_t, uint32_t> count() {
    repeated_ = true;
    counted_ = false;
    if (take("?")) return {0, 1};
    if (take("*")) return {0, kUnbounded};
    if (take("+")) return {1, kUnbounded};
    if (take("{")) {
      counted_ = true;
      const uint32_t least = number();
      const uint32_t most = !take(",") ? least : peek() == '}' ? kUnbounded : number();
      if (!take("}") || least > most) throw NotSimple();
      return {least, most};
    }
    repeated_ = false;
    return {1, 1};
  }
  uint32_t number() {
    uint32_t result = 0;
    const auto [end, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), result);
    if (code != std::errc() || result > kMostRepeats) throw NotSimple();
    at_ = static_cast<size_t>(end - text_.data());
    return result;
  }
  void refuse_more() {
    if (repeated_ && more() && std::string_view("?*+{").find(peek()) != std::string_view::npos) throw NotSimple();
  }

  CharacterSet one_character() {
    CharacterSet set;
    if (take("[")) {
      bracket(set);
    } else if (take(".")) {
      set.add_range('\n', '\n');
      set.negate();
    } else if (peek() == '\\') {
      escape(set);
    } else if (std::string_view("^$*+?{}|)(").find(peek()) != std::string_view::npos) {
      throw NotSimple();
    } else {
      add_literal(set, take_character());
    }
    return set;
  }

  void bracket(CharacterSet& set) {
    const bool negated = take("^");
    if (ignore_case_ && negated) throw NotSimple();
    if (peek() == ']') throw NotSimple();
    while (!take("]")) {
      if (peek() == '[' || text_.compare(at_, 2, "&&") == 0) throw NotSimple();  // sets of sets
      std::optional<char32_t> first;
      if (peek() == '\\') {
        first = escape(set);
      } else {
        first = take_character();
        if (*first == '-' && peek() != ']') throw NotSimple();
        add_literal(set, *first);
      }
      if (peek() != '-' || text_.compare(at_, 2, "-]") == 0) continue;
      if (!first || ignore_case_) throw NotSimple();
      take("-");
      if (peek() == '\\' || peek() == '[') throw NotSimple();
      const char32_t last = take_character();
      if (last < *first) throw NotSimple();
      set.add_range(*first, last);
    }
    if (negated) set.negate();
  }

  /// What a backslash begins; the character, if it is one.
  std::optional<char32_t> escape(CharacterSet& set) {
    take("\\");
    const char32_t c = take_character();
    switch (c) {
      case 's': set.add_classes(kWhiteSpace, false); return {};
      case 'S': set.add_classes(kWhiteSpace, true); return {};
      case 'p':
      case 'P': {
        if (!take("{")) throw NotSimple();
        const bool inner = take("^");
        const size_t end = text_.find('}', at_);
        if (end == std::string::npos) throw NotSimple();
        const auto classes = property(std::string_view(text_).substr(at_, end - at_));
        if (!classes || ignore_case_) throw NotSimple();
        at_ = end + 1;
        set.add_classes(*classes, inner != (c == 'P'));
        return {};
      }
      case 'r': return add_literal(set, '\r');
      case 'n': return add_literal(set, '\n');
      case 't': return add_literal(set, '\t');
      default:
        if (c >= 0x80 || !is_any(c, kPunctuation) || c == '<' || c == '>' || c == '`' || c == '\'') throw NotSimple();
        return add_literal(set, c);
    }
  }

  char32_t add_literal(CharacterSet& set, char32_t c) {
    set.add_range(c, c);
    if (!ignore_case_) return c;
    if (c >= 0x80) throw NotSimple();
    const char32_t lower = lower_case(c);
    if (lower < 'a' || lower > 'z') return c;
    set.add_range(lower, lower);
    set.add_range(lower - 0x20, lower - 0x20);
    if (lower == 's') set.add_range(0x17F, 0x17F);    // long s
    if (lower == 'k') set.add_range(0x212A, 0x212A);  // Kelvin
    return c;
  }

  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false, repeated_ = false, counted_ = false;
  RegexProgram program_;
};

}  // namespace

std::optional<RegexProgram> compile_simple(const std::string& expression) {
  if (utf8_first_invalid(expression) != std::string::npos) return {};
  try {
    return Compiler(expression).compile();
  } catch (const NotSimple&) {
    return {};
  }
}

}  // namespace qkv::text
