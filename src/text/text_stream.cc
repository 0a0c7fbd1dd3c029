// SPDX-License-Identifier: Apache-2.0
#include "qkv/text/text_stream.h"

#include <algorithm>
#include <string_view>

#include "text/decoder.h"
#include "text/utf8.h"

namespace qkv {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, bool special_tokens)
    : tokenizer_(tokenizer), special_tokens_(special_tokens) {}

std::string TextStream::given_from(const std::string& text, size_t end) {
  const size_t begin = std::min(given_, end);
  given_ = std::max(given_, end);
  return text.substr(begin, end - begin);
}

std::string TextStream::add(uint32_t id) {
  if (!special_tokens_ && tokenizer_.is_special(id)) return {};
  window_.push_back(id);
  const std::string text = tokenizer_.decode(window_, special_tokens_);
  if (const auto token = tokenizer_.token(id); token && text::byte_of_token(*token)) return {};
  // A broken character at the end may be the beginning of a whole one.
  const bool whole = !text.ends_with(kReplacement);
  std::string piece = given_from(text, whole ? text.size() : text.size() - kReplacement.size());
  if (!whole) return piece;
  // The window moves on: what was new becomes context. Context must have text of its own, or decoders would take the
  // next token for the first one, whose blank they strip.
  const std::vector<uint32_t> later(window_.begin() + static_cast<ptrdiff_t>(context_), window_.end());
  const std::string later_text = tokenizer_.decode(later, special_tokens_);
  if (!later_text.empty()) {
    window_ = later;
    given_ = later_text.size();
  }
  context_ = window_.size();
  return piece;
}

std::string TextStream::finish() {
  const std::string text = tokenizer_.decode(window_, special_tokens_);
  std::string piece = given_from(text, text.size());
  window_.clear();
  context_ = given_ = 0;
  return piece;
}

}  // namespace qkv
