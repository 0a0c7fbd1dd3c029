// SPDX-License-Identifier: Apache-2.0
#include "text/split.h"

#include <algorithm>

#include "text/json_fields.h"

namespace qkv::text {
namespace {

/// Joins each part to the one before it where `joins(is_match, previous_is_match)`, the first to nothing.
template <class Joins>
void join(std::vector<Match>& matches, bool reversed, Joins&& joins) {
  size_t count = 0;
  bool previous = false;
  if (reversed) std::reverse(matches.begin(), matches.end());
  for (const Match match : matches) {
    if (count > 0 && joins(match.is_match, previous)) {
      Match& last = matches[count - 1];
      (reversed ? last.begin : last.end) = reversed ? match.begin : match.end;
    } else {
      matches[count++] = match;
    }
    previous = match.is_match;
  }
  matches.resize(count);
  if (reversed) std::reverse(matches.begin(), matches.end());
}

}  // namespace

Behavior behavior_of(const std::string& name, const std::string& where) {
  return static_cast<Behavior>(
      choose(name, {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, where));
}

void split_piece(const AlignedText& text, const Piece& piece, Behavior behavior, std::vector<Match>& matches,
                 std::vector<Piece>& out) {
  const auto alone = [](bool is_match, bool previous) { return is_match && !previous; };
  if (behavior == Behavior::contiguous) join(matches, false, [](bool is, bool previous) { return is == previous; });
  if (behavior == Behavior::merged_with_previous) join(matches, false, alone);
  if (behavior == Behavior::merged_with_next) join(matches, true, alone);
  for (const Match& match : matches) {
    if (match.begin == match.end || (behavior == Behavior::removed && match.is_match)) continue;
    out.push_back(text.slice(piece, static_cast<uint32_t>(match.begin), static_cast<uint32_t>(match.end)));
  }
  matches.clear();
}

}  // namespace qkv::text
