// SPDX-License-Identifier: Apache-2.0
// The normalization forms of Unicode, with the alignment that the package `tokenizers` gives them: a decomposed
// character replaces one and adds the others; sorting marks by combining class moves these changes along; a composed
// character counts what it swallowed as gone. What has no decomposition or combining class in the package's tables,
// which are of Unicode 9, has none here, whatever the version of utf8proc.
#include <utf8proc.h>

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

struct Sorted {
  char32_t character;
  int change;
  uint8_t combining_class;
};

uint8_t combining_class(char32_t c) {
  if (c == 0x345) return 240;
  if (!is_any(c, kReordered)) return 0;
  return static_cast<uint8_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

/// The full decomposition of one character; returns how many there are.
int decompose(char32_t c, bool compatible, char32_t out[32]) {
  out[0] = c;
  const bool hangul = c >= 0xAC00 && c < 0xAC00 + 11172;
  if (c < 0x80 || !(hangul || is_any(c, kDecomposed))) return 1;
  int boundary = 0;
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_int32_t parts[32];
  const auto count = static_cast<int>(utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32,
                                                              static_cast<utf8proc_option_t>(options), &boundary));
  if (count < 1 || count > 32) return 1;
  std::copy_n(parts, count, out);
  return count;
}

/// The character that two compose to, or 0.
char32_t compose(char32_t a, char32_t b) {
  if (b < 0x300) return 0;  // no character below composes with one before it
  utf8proc_int32_t pair[2] = {static_cast<utf8proc_int32_t>(a), static_cast<utf8proc_int32_t>(b)};
  const int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
  if (utf8proc_normalize_utf32(pair, 2, static_cast<utf8proc_option_t>(options)) != 1) return 0;
  const auto result = static_cast<char32_t>(pair[0]);
  const bool hangul = result >= 0xAC00 && result < 0xAC00 + 11172;
  return hangul || is_any(result, kDecomposed) ? result : 0;
}

/// Decomposed and sorted.
std::vector<Sorted> decomposed(std::string_view text, bool compatible) {
  std::vector<Sorted> result;
  result.reserve(text.size());
  size_t pending = 0;  // marks from here on wait for the next starter
  const auto sort_pending = [&] {
    const auto begin = result.begin() + static_cast<std::ptrdiff_t>(pending);
    if (result.end() - begin > 1) {
      std::stable_sort(begin, result.end(),
                       [](const Sorted& a, const Sorted& b) { return a.combining_class < b.combining_class; });
    }
    pending = result.size();
  };
  for_each_character(text, [&](size_t, char32_t c) {
    char32_t parts[32];
    const int count = decompose(c, compatible, parts);
    for (int n = 0; n < count; ++n) {
      const uint8_t order = combining_class(parts[n]);
      if (order == 0) sort_pending();
      result.push_back({parts[n], n == 0 ? 0 : 1, order});
    }
  });
  sort_pending();
  return result;
}

/// Composes each starter with what follows it, unless that is blocked by a mark of the same or a higher class between.
void compose_all(const std::vector<Sorted>& parts, std::vector<Change>& out) {
  size_t at = 0;
  while (at < parts.size() && parts[at].combining_class != 0) {
    out.push_back({parts[at].character, parts[at].change});
    ++at;
  }
  std::vector<Change> marks;  // behind the starter, not composed
  while (at < parts.size()) {
    Change starter{parts[at].character, parts[at].change};
    int last_class = -1;  // of the last mark kept
    marks.clear();
    for (++at; at < parts.size(); ++at) {
      const Sorted& next = parts[at];
      const bool blocked = last_class >= next.combining_class;
      const char32_t composed = blocked ? 0 : compose(starter.character, next.character);
      if (composed != 0) {
        starter = {composed, starter.change + next.change - 1};
        continue;
      }
      if (next.combining_class == 0) break;
      marks.push_back({next.character, next.change});
      last_class = next.combining_class;
    }
    out.push_back(starter);
    out.insert(out.end(), marks.begin(), marks.end());
  }
}

}  // namespace

void normalize(NormalizationForm form, std::string_view text, std::vector<Change>& out) {
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  const std::vector<Sorted> parts = decomposed(text, compatible);
  if (form == NormalizationForm::nfc || form == NormalizationForm::nfkc) return compose_all(parts, out);
  for (const Sorted& part : parts) out.push_back({part.character, part.change});
}

}  // namespace qkv::text
