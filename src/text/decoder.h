// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/json_fields.h"

namespace qkv::text {

/// Turns tokens, as the vocabulary spells them, back into text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// What is left, put together, is the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// The byte that a token of byte fallback stands for: "<0xE2>".
std::optional<unsigned char> byte_of_token(const std::string& token);

/// Makes a decoder of a file; throws Error for an unknown one. `where` starts the messages.
std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where);

}  // namespace qkv::text
