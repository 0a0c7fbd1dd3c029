// SPDX-License-Identifier: Apache-2.0
#include "cli/token_ids.h"

#include <algorithm>
#include <charconv>

#include "qkv/support/error.h"

namespace qkv::cli {

std::vector<uint32_t> read_ids(const std::string& line) {
  std::vector<uint32_t> ids;
  const char* at = line.data();
  const char* end = at + line.size();
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  const auto skip_blanks = [&] { at = std::find_if_not(at, end, is_blank); };
  skip_blanks();
  while (at < end) {
    const char* word_end = std::find_if(at, end, [&](char c) { return is_blank(c) || c == ','; });
    uint32_t id = 0;
    const auto [next, code] = std::from_chars(at, word_end, id);
    if (code != std::errc() || next != word_end) {
      fail("expected token ids, decimal, got '", std::string(at, word_end), "'");
    }
    ids.push_back(id);
    at = word_end;
    skip_blanks();
    if (at == end || *at != ',') continue;
    ++at;
    skip_blanks();
    require(at < end, "expected a token id after the last comma");
  }
  return ids;
}

}  // namespace qkv::cli
