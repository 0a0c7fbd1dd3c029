// SPDX-License-Identifier: Apache-2.0
// Any bytes are a tokenizer.json or are refused in a sentence; a tokenizer makes tokens of any text or refuses it in a
// sentence: as many offsets as ids, inside the text, the same with and without a cache, and decoding takes them. The
// file ends at the first NUL, the rest is the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fuzz.h"
#include "qkv/support/error.h"
#include "qkv/text/tokenizer.h"

namespace qkv {
namespace {

void check(const Tokenizer& tokenizer, std::string_view text) {
  TokenizerWorkspace workspace;
  Encoding first, again;
  tokenizer.encode(text, {}, workspace, first);
  tokenizer.encode(text, {}, workspace, again);
  must(first.ids == again.ids && first.offsets == again.offsets && first.ids.size() == first.offsets.size());
  tokenizer.encode(text, {.offsets = false}, workspace, again);
  must(first.ids == again.ids && again.offsets.empty());
  std::vector<uint32_t> known;
  for (const uint32_t id : first.ids) {
    if (tokenizer.token(id)) known.push_back(id);
  }
  tokenizer.decode(known);
  tokenizer.decode(known, false);
}

}  // namespace
}  // namespace qkv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  try {
    const qkv::Tokenizer tokenizer = qkv::Tokenizer::parse(input.substr(0, end), "t.json");
    try {
      qkv::check(tokenizer, input.substr(std::min(end + 1, size)).substr(0, 300));
    } catch (const qkv::Error& error) {
      qkv::must_be_a_sentence(error.what(), "");
    }
  } catch (const qkv::SystemError&) {
    qkv::must(false);  // nothing here needs more memory than a small multiple of the file
  } catch (const qkv::Error& error) {
    qkv::must_be_a_sentence(error.what(), "t.json: ");
  }
  return 0;
}
