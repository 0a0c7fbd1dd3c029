// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace qkv::text {

/// A set of characters, as a class in brackets describes it.
class CharacterSet {
 public:
  /// Those of these classes, or all but those.
  void add_classes(uint32_t classes, bool all_but) { parts_.push_back({classes, all_but}); }
  void add_range(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void negate() { negated_ = true; }
  /// To be called when all is added.
  void finish() {
    for (char32_t c = 0; c < ascii_.size(); ++c) ascii_[c] = has_rare(c);
  }

  bool has(char32_t c) const { return c < ascii_.size() ? ascii_[c] : has_rare(c); }

 private:
  struct Part {
    uint32_t classes;
    bool all_but;
  };
  bool has_rare(char32_t c) const {
    for (const Part& part : parts_) {
      if (is_any(c, part.classes) != part.all_but) return !negated_;
    }
    for (const auto& [first, last] : ranges_) {
      if (c >= first && c <= last) return !negated_;
    }
    return negated_;
  }
  std::vector<Part> parts_;
  std::vector<std::pair<char32_t, char32_t>> ranges_;
  bool negated_ = false;
  std::bitset<128> ascii_;
};

/// One step of a matcher. Each goes on to the next instruction unless it says another.
struct Instruction {
  enum class Kind : uint8_t {
    repeat,      ///< as many characters of `set` as there are, at least `least` and at most `most`; fewer if need be
    possessive,  ///< the same, but never fewer
    branch,      ///< the next one first, then `target`
    jump,        ///< to `target`
    ahead,       ///< what follows, up to its `match`, has to match here; then to `target`
    not_ahead,   ///< must not
    match,       ///< the end
  };
  Kind kind = Kind::match;
  uint32_t least = 0, most = 0;
  size_t set = 0, target = 0;
};

struct RegexProgram {
  std::vector<Instruction> instructions;
  std::vector<CharacterSet> sets;
};

/// Compiles an expression if it is simple; see simple_pattern.
std::optional<RegexProgram> compile_simple(const std::string& expression);

}  // namespace qkv::text
