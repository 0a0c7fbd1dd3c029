// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "text/aligned_text.h"
#include "text/pattern.h"

namespace qkv::text {

/// What becomes of a match, the delimiter, when a piece is split.
enum class Behavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// "Removed", "Isolated", ... as files spell them.
Behavior behavior_of(const std::string& name, const std::string& where);

/// Appends the parts of `piece` that its matches, which cover it, leave under a behavior. Uses up `matches`.
void split_piece(const AlignedText& text, const Piece& piece, Behavior behavior, std::vector<Match>& matches,
                 std::vector<Piece>& out);

}  // namespace qkv::text
