// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

/// Learns a byte-level BPE tokenizer, as GPT-2's: words are what its regular expression splits a line into, tokens
/// begin as bytes, and the pair that is most frequent becomes a token, again and again; of equally frequent ones the
/// pair whose tokens are older. The result depends on the texts alone, not on their order.
class BpeTrainer {
 public:
  BpeTrainer();
  ~BpeTrainer();
  BpeTrainer(BpeTrainer&&) noexcept;
  BpeTrainer& operator=(BpeTrainer&&) noexcept;

  /// Counts the words of a text, line by line; a newline belongs to the line it ends. Throws Error when the text is not
  /// valid UTF-8; `name` starts the message, which says the line and the byte.
  void add(std::string_view text, const std::string& name);
  /// The same, of a file. Throws SystemError when it cannot be read.
  void add_file(const std::string& path);

  /// Learns `vocabulary` tokens, the special ones and the 256 bytes among them, or fewer when no pair is left. May be
  /// called once. Throws Error when they do not fit.
  void train(int64_t vocabulary, const std::vector<std::string>& special_tokens);

  int64_t words() const;       ///< different ones
  int64_t vocabulary() const;  ///< tokens after train()
  int64_t merges() const;
  /// What train() learned, as a tokenizer.json.
  std::string json() const;
  /// Writes that, whole or not at all. Throws SystemError when it cannot.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv
