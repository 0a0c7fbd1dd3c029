// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/text/tokenizer.h"

namespace qkv {

/// The text of tokens that come one at a time. What add() and finish() give, put together, is
/// tokenizer.decode(all ids, special_tokens), and each of them gives whole characters of valid UTF-8:
/// a character whose bytes are in several tokens is given with the last of them.
///
/// Bytes that are no character become U+FFFD as decode writes them, once it is certain. Byte-level tokens: one U+FFFD
/// for the longest beginning of a character, given when the next token does not continue it. Byte-fallback tokens
/// (<0xE2>): the decoder writes one U+FFFD for each byte of a run that is not valid as a whole, so a run is given when
/// it has ended.
///
/// Decoders look back over few tokens, so only a window of the last ones is decoded again. A Replace decoder after Fuse
/// that changes text across the window's border is the exception to the first sentence.
class TextStream {
 public:
  /// The tokenizer must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer, bool special_tokens = false);

  /// Throws Error for an id that is not in the vocabulary.
  std::string add(uint32_t id);
  /// What was held back; the stream begins anew.
  std::string finish();

 private:
  std::string given_from(const std::string& text, size_t end);

  const Tokenizer& tokenizer_;
  bool special_tokens_;
  std::vector<uint32_t> window_;  ///< the last tokens, the first context_ of them wholly given
  size_t context_ = 0;
  size_t given_ = 0;  ///< bytes of the window's text that were given
};

}  // namespace qkv
