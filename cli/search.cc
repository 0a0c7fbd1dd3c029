// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/clean_up.h"
#include "cli/output_place.h"
#include "cli/verbs.h"
#include "qkv/models/sentence_embedder.h"
#include "qkv/search/search_index.h"
#include "qkv/support/error.h"
#include "qkv/text/tokenizer.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) {
  verb.add_option("QUERY", call.search.query, "what to look for")->type_name("");
  add_value(verb, call, "--index", "FILE", "the index, a .safetensors file", [&](const std::string& text) {
    call.search.index = text;
  })->required();
  verb.add_option("--add", call.search.add, "take files, and those of folders, into the index; no query then")
      ->type_name("FILES");
  add_value(verb, call, "--results", "N", "passages to show (default 5)", [&](const std::string& text) {
    call.search.results = parse_integer("--results", text, 1, int64_t{1} << 31);
  });
  add_model_options(verb, call);
}

/// Counts of one tokenizer, uncut.
CountTokens counter(const Tokenizer& tokenizer) {
  struct Memory {
    TokenizerWorkspace workspace;
    Encoding encoding;
  };
  auto memory = std::make_shared<Memory>();
  return [&tokenizer, memory](std::string_view text) {
    tokenizer.encode(text,
                     {.special_tokens = false, .offsets = false, .max_length = std::numeric_limits<uint32_t>::max()},
                     memory->workspace, memory->encoding);
    return static_cast<int64_t>(memory->encoding.ids.size());
  };
}

std::string one_or_more(int64_t count, const char* noun) { return concat(count, " ", noun, count == 1 ? "" : "s"); }

void report(const Call& call, const SearchIndex& index, const IndexChange& change) {
  if (call.json) {
    const nlohmann::ordered_json object = {
        {"index", call.search.index}, {"files", index.files()},    {"passages", index.passages()},
        {"added", change.added},      {"updated", change.updated}, {"unchanged", change.unchanged},
        {"dropped", change.dropped},  {"skipped", change.skipped}, {"unreadable", change.unreadable}};
    return print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  print(concat(one_or_more(index.passages(), "passage"), " of ", one_or_more(index.files(), "file"), ": ", change.added,
               " added, ", change.updated, " updated, ", change.unchanged, " unchanged, ", change.dropped,
               " dropped\n"));
}

void add_files(const Call& call, const SearchModel& model) {
  const std::string& path = call.search.index;
  SearchIndex index = std::filesystem::exists(path) ? SearchIndex::read(path, model) : SearchIndex(path, model);
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const IndexChange change = index.update(call.search.add, [&](int64_t done, int64_t total) {
    if (terminal) std::cerr << "\rembedded " << done << " of " << total << " passages" << std::flush;
  });
  if (terminal && change.passages > 0) std::cerr << "\r\x1b[K" << std::flush;
  for (const std::string& skipped : change.skipped) std::cerr << "qkv: note: " << skipped << ": not text, left out\n";
  for (const std::string& path : change.unreadable) std::cerr << "qkv: warning: " << path << ": cannot be read\n";
  report(call, index, change);  // first: what cannot be said is an error, and an error leaves no output
  {
    const CleanUp clean_up(path);
    index.write();
  }
  if (!change.unreadable.empty()) {
    throw SystemError(concat(path, ": holds all but ",
                             one_or_more(static_cast<int64_t>(change.unreadable.size()), "path"),
                             " that cannot be read"));
  }
}

/// A passage's lines, set in.
std::string indented(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += line.empty() ? "\n" : "    " + line + "\n";
  return result;
}

void find(const Call& call, const SearchModel& model) {
  const SearchIndex index = SearchIndex::read(call.search.index, model);
  const std::vector<SearchResult> results = index.search(call.search.query, call.search.results);
  if (call.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& [score, path, passage] : results) {
      list.push_back({{"score", score}, {"path", path}, {"line", passage.line}, {"text", passage.text}});
    }
    const nlohmann::ordered_json object = {{"query", call.search.query}, {"results", list}};
    return print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  std::ostringstream text;
  text << std::fixed;
  text.precision(3);
  for (const auto& [score, path, passage] : results) {
    text << score << "  " << path << ":" << passage.line << "\n" << indented(passage.text) << "\n";
  }
  print(text.str());
}

void run(const Call& call) {
  const bool adds = !call.search.add.empty();
  require(adds != !call.search.query.empty(), "expected --add PATH... or a query, got ", adds ? "both" : "neither");
  use_target(call);
  if (adds) check_output_place(call.search.index, call.search.index);
  if (!adds && !std::filesystem::exists(call.search.index)) {
    throw SystemError(call.search.index + ": no such index; --add makes one");
  }
  const SentenceEmbedder embedder =
      SentenceEmbedder::from_folder(call.model, {.dtype = call.run.dtype, .threads = call.options.threads});
  const Tokenizer tokenizer = Tokenizer::read((std::filesystem::path(call.model) / "tokenizer.json").string());
  const SearchModel model{.name = model_digest(call.model),
                          .width = embedder.width(),
                          .embed = [&](std::span<const std::string> texts) { return embedder.embed(texts); },
                          .count_tokens = counter(tokenizer)};
  adds ? add_files(call, model) : find(call, model);
}

}  // namespace

const Verb kSearch = {"search", "find passages of text files by their meaning",
                      "With --add, cuts text files into passages, embeds them with the model, a folder as\n"
                      "sentence-transformers writes it, and keeps them in the index. Adding again takes in what has\n"
                      "changed and drops files that are gone. Binary files are left out with a note; what cannot be\n"
                      "read is named, and 1 returned in the end. With a query, shows the nearest passages: score,\n"
                      "path and line, text.\n"
                      "\n"
                      "Example:\n"
                      "  qkv search --model all-MiniLM-L6-v2 --index docs.safetensors --add docs\n"
                      "  qkv search --model all-MiniLM-L6-v2 --index docs.safetensors \"how are files opened?\"",
                      add, run};

}  // namespace qkv::cli
