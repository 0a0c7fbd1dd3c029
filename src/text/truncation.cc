// SPDX-License-Identifier: Apache-2.0
#include "text/truncation.h"

#include "qkv/support/error.h"

namespace qkv::text {

std::optional<Truncation> read_truncation(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  JsonFields fields(json, where);
  Truncation result;
  result.max_length = fields.integer("max_length");
  result.stride = fields.integer("stride");
  result.left = choose(fields.string("direction", "Right"), {"Right", "Left"}, where + ": direction") == 1;
  const std::string strategy = fields.string("strategy");
  result.second_only = choose(strategy, {"LongestFirst", "OnlyFirst", "OnlySecond"}, where + ": strategy") == 2;
  fields.done();
  return result;
}

void Truncation::apply(std::vector<PlacedToken>& tokens, uint32_t added) const {
  require(max_length >= added, "tokenizer: truncation: max_length is ", max_length, ", and ", added,
          " special tokens are added");
  const uint32_t most = max_length - added;
  if (tokens.size() <= most) return;
  require(!second_only || most == 0, "tokenizer: truncation: the text has ", tokens.size(), " tokens, at most ", most,
          " fit, and the strategy OnlySecond cuts no single text");
  require(stride < most || most == 0, "tokenizer: truncation: expected a stride below ", most, ", got ", stride);
  const auto excess = static_cast<std::ptrdiff_t>(tokens.size() - most);
  if (left) {
    tokens.erase(tokens.begin(), tokens.begin() + excess);
  } else {
    tokens.resize(most);
  }
}

}  // namespace qkv::text
