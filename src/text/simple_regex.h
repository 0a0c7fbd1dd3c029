// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "text/pattern.h"

namespace qkv::text {

/// Steps that trying to match at one place may take; it is Oniguruma's own limit. Real patterns need tens.
constexpr long kMatchSteps = 10'000'000;
/// Steps of a whole search, from one match to the next: about a second of work.
constexpr long kSearchSteps = 10 * kMatchSteps;

/// A matcher for expressions of the kind that tokenizers split text with: characters, classes, properties, groups,
/// alternatives, greedy and possessive repetition, look-ahead, (?i:...) around ASCII. It gives the matches of
/// Oniguruma, by backtracking as it does, with qkv's own tables of characters, and in a fraction of the time. Null for
/// an expression of any other kind. `where` starts the messages.
std::unique_ptr<Pattern> simple_pattern(const std::string& expression, const std::string& where);

}  // namespace qkv::text
