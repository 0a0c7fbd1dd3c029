// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>

#include "cli/model_files.h"
#include "cli/verbs.h"
#include "qkv/models/sentence_embedder.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) {
  add_value(verb, call, "-o,--output", "OUT", "where embeddings go: NAME.npy or NAME.safetensors (default: as text)",
            [&](const std::string& text) { call.output = text; });
  add_model_options(verb, call);
}

/// Lines of standard input, which end at "\n" alone.
std::vector<std::string> read_lines() {
  std::vector<std::string> lines;
  std::string line;
  while (std::getline(std::cin, line)) lines.push_back(std::move(line));
  if (std::cin.bad() || std::ferror(stdin) != 0) throw SystemError("standard input: cannot read");
  return lines;
}

/// One JSON list a row.
std::string as_text(const Tensor& rows) {
  std::string text;
  const auto* values = static_cast<const float*>(rows.view().data());
  const int64_t width = rows.shape()[1];
  for (int64_t n = 0; n < rows.shape()[0]; ++n) {
    text += '[';
    for (int64_t i = 0; i < width; ++i) {
      char digits[32];
      if (i > 0) text += ", ";
      const float value = values[n * width + i];
      if (!std::isfinite(value)) {
        text += "null";  // JSON has no other word for it
        continue;
      }
      text.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
    }
    text += "]\n";
  }
  return text;
}

void run(const Call& call) {
  const std::string target = use_target(call);
  Arrays results;
  results["out"] = Tensor(DType::f32, {0, 0});
  std::optional<Output> output;
  if (!call.output.empty()) output.emplace(call.output, model_files(call.model), results);
  const SentenceEmbedder embedder =
      SentenceEmbedder::from_folder(call.model, {.dtype = call.run.dtype, .threads = call.options.threads});
  const std::vector<std::string> lines = read_lines();
  const Stopwatch watch;
  try {
    results["out"] = embedder.embed(lines);
  } catch (const SystemError&) {
    throw;
  } catch (const Error& error) {
    fail("standard input: ", error.what());
  }
  const double seconds = watch.seconds();
  if (!output) return print(as_text(results["out"]));
  std::ostringstream text;
  text.precision(3);
  if (call.json) {
    text << "{\"verb\":\"embed\",\"shape\":[" << lines.size() << "," << embedder.width() << "],\"target\":\"" << target
         << "\",\"threads\":" << thread_count(call) << ",\"seconds\":" << seconds << "}\n";
  } else {
    text << lines.size() << (lines.size() == 1 ? " text" : " texts") << " of width " << embedder.width() << " in "
         << seconds << " s, " << target << "\n";
  }
  print(text.str());
  output->write(results);
}

}  // namespace

const Verb kEmbed = {"embed", "lines of text to sentence embeddings",
                     "Reads lines from standard input and gives f32 [N, width], pooled, cut and normalised as the\n"
                     "folder's sentence-transformers files say. Without -o: one JSON list for each line. An empty\n"
                     "line is a text without words.\n"
                     "\n"
                     "Example:\n"
                     "  qkv embed --model all-MiniLM-L6-v2 -o embeddings.npy < lines.txt",
                     add, run};

}  // namespace qkv::cli
