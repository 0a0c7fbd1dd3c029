// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/json_fields.h"

namespace qkv::text {

/// A token with its offsets in code points of the original, and how many characters of it are blanks at either end.
struct PlacedToken {
  uint32_t id = 0;
  uint32_t begin = 0, end = 0;
  uint32_t leading = 0, trailing = 0;
};

/// The tokens of a text, in parts that post-processors put special tokens between.
using TokenParts = std::vector<std::vector<PlacedToken>>;

/// Adds the special tokens of a model, and trims offsets.
class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  /// How many tokens it adds to a text.
  virtual uint32_t added() const = 0;
  /// Without `special_tokens` none are added.
  virtual void apply(TokenParts& parts, bool special_tokens) const = 0;
  /// Whether it asks for the blanks of tokens.
  virtual bool trims() const { return false; }
};

/// Makes a post-processor of a file; throws Error for an unknown one. `where` starts the messages.
std::unique_ptr<PostProcessor> make_post_processor(const Json& json, const std::string& where);

}  // namespace qkv::text
