// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/json_fields.h"
#include "text/post_processor.h"

namespace qkv::text {

/// How a file cuts a text that is too long. What it would keep of the rest, in other encodings, is not kept.
struct Truncation {
  uint32_t max_length = 0;  ///< tokens, special ones included
  uint32_t stride = 0;
  bool left = false;         ///< the beginning goes instead of the end
  bool second_only = false;  ///< only the second of a pair may be cut

  /// Cuts the tokens of a text to what leaves room for `added` special ones.
  void apply(std::vector<PlacedToken>& tokens, uint32_t added) const;
};

/// Null: none. `where` starts the messages.
std::optional<Truncation> read_truncation(const Json& json, const std::string& where);

}  // namespace qkv::text
