// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "text/aligned_text.h"
#include "text/json_fields.h"

namespace qkv::text {

/// Splits pieces into what the model sees one at a time.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits every piece that is no added token. Const and safe from many threads.
  virtual void apply(AlignedText& text) const = 0;
};

/// Makes a pre-tokenizer of a file; throws Error for an unknown one. `where` starts the messages.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where);

/// prepend_scheme of Metaspace.
enum class PrependScheme : uint8_t { always, first, never };
/// Reads it, or the older add_prefix_space.
PrependScheme read_prepend_scheme(JsonFields& fields);

}  // namespace qkv::text
