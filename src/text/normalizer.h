// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "text/aligned_text.h"
#include "text/json_fields.h"

namespace qkv::text {

/// Changes the text of pieces before they are split.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Normalizes every piece that is no added token. Const and safe from many threads.
  virtual void apply(AlignedText& text) const = 0;
};

/// Makes a normalizer of a file; throws Error for an unknown one. `where` starts the messages.
std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where);

/// SentencePiece's map of strings to strings, `nmt_nfkc` and the like, from its field `precompiled_charsmap`.
std::unique_ptr<Normalizer> make_precompiled(JsonFields& fields);

/// A text by itself, normalized. Null changes nothing.
std::string normalized(const Normalizer* normalizer, const std::string& text);

/// The editor's text with every byte as the character that stands for it in byte-level tokens.
void write_byte_level(TextEditor& editor);

}  // namespace qkv::text
