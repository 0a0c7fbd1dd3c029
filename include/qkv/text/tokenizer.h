// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

/// Where a token stands in its text: code points [begin, end). Special tokens that were added stand at 0, 0.
struct TokenOffsets {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const TokenOffsets&) const = default;
};

/// A text as tokens.
struct Encoding {
  std::vector<uint32_t> ids;
  std::vector<TokenOffsets> offsets;  ///< as many as ids; empty when they were not asked for
};

struct EncodeOptions {
  bool special_tokens = true;  ///< add those that the file's post-processor adds
  bool offsets = true;
  std::optional<uint32_t> max_length = {};  ///< tokens a text is cut to, instead of what the file says
};

/// What a thread needs besides the tokenizer: buffers, and the tokens of words it has seen. Use one for many texts,
/// with one tokenizer.
class TokenizerWorkspace {
 public:
  TokenizerWorkspace();
  ~TokenizerWorkspace();
  TokenizerWorkspace(TokenizerWorkspace&&) noexcept;
  TokenizerWorkspace& operator=(TokenizerWorkspace&&) noexcept;

 private:
  friend class Tokenizer;
  struct State;
  std::unique_ptr<State> state_;
};

/// A tokenizer as a file tokenizer.json describes it: the same ids and offsets as the Python package `tokenizers`
/// gives. What it supports, and where it differs, is in docs/tokenizers.md. A const tokenizer may be used by many
/// threads, each with a workspace of its own.
class Tokenizer {
 public:
  /// Reads a file. Throws SystemError when it cannot be read, and Error for one that is malformed or holds anything
  /// that is not supported.
  static Tokenizer read(const std::string& path);
  /// Reads the content of a file; `name` starts the messages.
  static Tokenizer parse(std::string_view json, const std::string& name);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// The tokens of a text, cut to the file's truncation; its padding is not applied. Throws Error when `text` is not
  /// valid UTF-8, naming the byte, and when the file has no token for what it holds.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The same, into `result`, whose memory is used again.
  void encode(std::string_view text, const EncodeOptions& options, TokenizerWorkspace& workspace,
              Encoding& result) const;

  /// The text of tokens. Special tokens are part of it unless `special_tokens` is false. Throws Error for an id that is
  /// not in the vocabulary.
  std::string decode(std::span<const uint32_t> ids, bool special_tokens = true) const;

  /// Ids are below this; the vocabulary may leave some out.
  uint64_t id_limit() const;
  std::optional<uint32_t> id(std::string_view token) const;
  std::optional<std::string> token(uint32_t id) const;
  /// Whether decode leaves this token out when it is to leave out special ones.
  bool is_special(uint32_t id) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace qkv
