// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/token_ids.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"
#include "qkv/text/tokenizer.h"

namespace qkv::cli {
namespace {

/// Lines that are worked on at a time, and the bytes that end a batch earlier.
constexpr size_t kBatchLines = 4096, kBatchBytes = 4 << 20;

void add(CLI::App& verb, Call& call) {
  add_value(verb, call, "--model", "DIR", "a folder with tokenizer.json, or such a file", [&](const std::string& text) {
    call.model = text;
  })->required();
  add_switch(verb, call.decode, "--decode", "read ids, decimal, with blanks or commas between, and write text");
  add_switch(verb, call.with_offsets, "--offsets", "write every token as id:begin-end, in code points of the line");
  add_switch(verb, call.no_special, "--no-special", "add no special tokens; with --decode, leave them out");
  add_machine_options(verb, call);
  add_idle_dtype(verb, call);
}

std::string tokenizer_path(const std::string& model) {
  return std::filesystem::is_regular_file(model) ? model : (std::filesystem::path(model) / "tokenizer.json").string();
}

/// Lines of standard input, which end at "\n" alone.
class Lines {
 public:
  /// The next lines; none at the end of the input.
  std::vector<std::string> next() {
    std::vector<std::string> lines;
    size_t bytes = 0;
    std::string line;
    while (lines.size() < kBatchLines && bytes < kBatchBytes && std::getline(std::cin, line)) {
      bytes += line.size();
      lines.push_back(std::move(line));
    }
    if (std::cin.bad() || std::ferror(stdin) != 0) throw SystemError("standard input: cannot read");
    return lines;
  }
};

void append_number(std::string& text, uint32_t number) {
  char digits[16];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

void append_list(std::string& text, const std::vector<uint32_t>& ids) {
  for (size_t n = 0; n < ids.size(); ++n) {
    if (n > 0) text += ',';
    append_number(text, ids[n]);
  }
}

/// What one line becomes, with its end.
std::string encoded(const Call& call, const Encoding& encoding) {
  std::string text;
  if (call.json) {
    text = "{\"ids\":[";
    append_list(text, encoding.ids);
    text += "],\"offsets\":[";
    for (size_t n = 0; n < encoding.offsets.size(); ++n) {
      text += n > 0 ? ",[" : "[";
      append_number(text, encoding.offsets[n].begin);
      text += ',';
      append_number(text, encoding.offsets[n].end);
      text += ']';
    }
    return text + "]}\n";
  }
  for (size_t n = 0; n < encoding.ids.size(); ++n) {
    if (n > 0) text += ' ';
    append_number(text, encoding.ids[n]);
    if (!call.with_offsets) continue;
    text += ':';
    append_number(text, encoding.offsets[n].begin);
    text += '-';
    append_number(text, encoding.offsets[n].end);
  }
  return text + "\n";
}

std::string decoded(const Call& call, const Tokenizer& tokenizer, const std::string& line) {
  const std::string text = tokenizer.decode(read_ids(line), !call.no_special);
  return call.json ? nlohmann::json{{"text", text}}.dump() + "\n" : text + "\n";
}

/// What a line of the input came to.
struct Outcome {
  std::string text;  ///< the line of the output, or what is wrong with that of the input
  bool is_wrong = false;
};

void run(const Call& call) {
  require(!call.decode || !call.with_offsets, "--decode and --offsets exclude each other: text has no tokens");
  use_target(call);
  const Tokenizer tokenizer = Tokenizer::read(tokenizer_path(call.model));
  const EncodeOptions options{.special_tokens = !call.no_special, .offsets = call.with_offsets || call.json};
  const int threads = thread_count(call);
  std::vector<TokenizerWorkspace> workspaces(static_cast<size_t>(parallel_workers(kBatchLines, threads)));
  std::vector<Encoding> encodings(workspaces.size());
  Lines input;
  size_t first = 1;
  for (std::vector<std::string> lines = input.next(); !lines.empty(); lines = input.next()) {
    std::vector<Outcome> outcomes(lines.size());
    parallel_for(static_cast<int64_t>(lines.size()), threads, [&](int64_t index, int worker) {
      const auto n = static_cast<size_t>(index), w = static_cast<size_t>(worker);
      try {
        if (call.decode) {
          outcomes[n].text = decoded(call, tokenizer, lines[n]);
        } else {
          tokenizer.encode(lines[n], options, workspaces[w], encodings[w]);
          outcomes[n].text = encoded(call, encodings[w]);
        }
      } catch (const Error& error) {
        outcomes[n] = {error.what(), true};
      }
    });
    const auto wrong = std::find_if(outcomes.begin(), outcomes.end(), [](const Outcome& one) { return one.is_wrong; });
    std::string text;
    for (auto one = outcomes.begin(); one != wrong; ++one) text += one->text;
    print(text);
    first += static_cast<size_t>(wrong - outcomes.begin());
    if (wrong != outcomes.end()) fail("standard input: line ", first, ": ", wrong->text);
  }
}

}  // namespace

const Verb kTokenize = {
    "tokenize", "text to token ids, or back, a line at a time",
    "Reads lines from standard input, each ended by a newline alone, and writes one line for each:\n"
    "ids with blanks between, or with --json {\"ids\": [...], \"offsets\": [[begin, end], ...]}.\n"
    "With --decode the text of the ids, or {\"text\": ...}. The file's truncation applies, its padding\n"
    "does not.\n"
    "\n"
    "Example:\n"
    "  qkv tokenize --model model --offsets < lines.txt",
    add, run};

}  // namespace qkv::cli
