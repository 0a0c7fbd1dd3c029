// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_text.h"

#include <unistd.h>

#include <iostream>

#include "cli/report.h"

namespace qkv::cli {

Screen::Screen(bool streams) : streams_(streams), terminal_(::isatty(STDERR_FILENO) != 0) {}

Screen::~Screen() { clear(); }

void Screen::clear() {
  if (line_) std::cerr << "\r\x1b[K" << std::flush;
  line_ = false;
}

void Screen::write(const std::string& piece) {
  if (piece.empty() || !streams_) return;
  clear();
  print(piece);
}

void Screen::prompt_read(int64_t done, int64_t total) {
  if (!terminal_) return;
  std::cerr << "\rreading the prompt: " << done << " of " << total << " tokens" << std::flush;
  line_ = true;
}

GeneratedTexts::GeneratedTexts(const Tokenizer* tokenizer, std::vector<std::string> stops, size_t prompts,
                               Screen& screen)
    : tokenizer_(tokenizer), stops_(std::move(stops)), screen_(screen) {
  if (tokenizer == nullptr) return;
  for (size_t n = 0; n < prompts; ++n) texts_.emplace_back(*tokenizer, stops_);
}

void GeneratedTexts::watch(GenerateOptions& options) {
  options.on_prompt = [this](int64_t done, int64_t total) { screen_.prompt_read(done, total); };
  if (tokenizer_ == nullptr) return;
  streamed_ = options.beams.beams == 1;
  if (streamed_) {
    options.on_token = [this](int64_t sequence, uint32_t token) {
      GeneratedText& text = texts_[static_cast<size_t>(sequence)];
      screen_.write(text.add(token));
      return !text.stopped();
    };
  } else if (!stops_.empty()) {
    options.stops = [this](std::span<const uint32_t> tokens) {
      GeneratedText text(*tokenizer_, stops_);
      for (const uint32_t token : tokens) text.add(token);
      text.finish();
      return text.stopped();
    };
  }
}

std::optional<std::string> GeneratedTexts::finish(size_t prompt, Generation& result) {
  if (tokenizer_ == nullptr) return {};
  GeneratedText& text = texts_[prompt];
  for (size_t n = 0; !streamed_ && n < result.tokens.size(); ++n) screen_.write(text.add(result.tokens[n]));
  screen_.write(text.finish());
  if (text.stopped()) result.finish = Finish::stop;
  return text.text();
}

}  // namespace qkv::cli
