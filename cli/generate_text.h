// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/generate/generate.h"
#include "qkv/generate/stop_text.h"
#include "qkv/text/text_stream.h"

namespace qkv::cli {

/// The text of one sequence, as far as it is certain, up to a stop text.
class GeneratedText {
 public:
  GeneratedText(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : tokenizer_(&tokenizer), stream_(tokenizer), stop_(stops) {}

  /// What a new token adds to it. Models may have more ids than their tokenizer, which have no text.
  std::string add(uint32_t token) {
    return tokenizer_->token(token) ? keep(stop_.add(stream_.add(token))) : std::string();
  }
  std::string finish() { return keep(stop_.add(stream_.finish()) + stop_.finish()); }
  bool stopped() const { return stop_.stopped(); }
  const std::string& text() const { return text_; }

 private:
  std::string keep(std::string piece) {
    text_ += piece;
    return piece;
  }

  const Tokenizer* tokenizer_;
  TextStream stream_;
  StopText stop_;
  std::string text_;
};

/// Where a text is written as it comes, and a line on standard error while a long prompt is read: where that is a
/// terminal.
class Screen {
 public:
  explicit Screen(bool streams);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  void write(const std::string& piece);
  void prompt_read(int64_t done, int64_t total);

 private:
  void clear();
  bool streams_, terminal_;
  bool line_ = false;  ///< a line of progress stands on standard error
};

/// Text results of a call: what on_token and stops of GenerateOptions do with tokens.
class GeneratedTexts {
 public:
  /// `tokenizer` may be absent: then there is no text.
  GeneratedTexts(const Tokenizer* tokenizer, std::vector<std::string> stops, size_t prompts, Screen& screen);

  /// Binds the callbacks of a call; this must outlive it.
  void watch(GenerateOptions& options);
  /// The text of a result; sets its finish to stop where the last piece of text completed a stop text.
  std::optional<std::string> finish(size_t prompt, Generation& result);

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::string> stops_;
  std::vector<GeneratedText> texts_;
  bool streamed_ = false;  ///< tokens come one at a time
  Screen& screen_;
};

}  // namespace qkv::cli
