// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/clean_up.h"
#include "cli/output_place.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"
#include "qkv/text/bpe_training.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) {
  verb.require_subcommand(1);
  CLI::App* train = verb.add_subcommand("train", "learn a byte-level BPE tokenizer from text");
  train->add_option("--data", call.data, "text files, valid UTF-8")->required()->type_name("FILES");
  add_value(*train, call, "--vocabulary", "N", "tokens to learn, 256 bytes and the special ones among them",
            [&](const std::string& text) { call.vocabulary = parse_integer("--vocabulary", text, 1, (1LL << 31) - 1); })
      ->required();
  add_value(*train, call, "-o,--output", "OUT", "the tokenizer.json to write", [&](const std::string& text) {
    call.output = text;
  })->required();
  train->add_option("--special", call.special_tokens, "special tokens, the first ids (default <|endoftext|>)")
      ->type_name("TOKENS");
  add_machine_options(*train, call);
  add_idle_dtype(*train, call);
}

void check_output(const Call& call) {
  for (const std::string& path : call.data) {
    std::error_code ignored;
    require(!std::filesystem::equivalent(path, call.output, ignored), "--output: ", call.output, " is the input ",
            path);
  }
  require(!std::filesystem::is_directory(call.output), "--output: ", call.output,
          ": a folder stands where a file goes");
  check_output_place(call.output, call.output);
}

std::string summary(const Call& call, const BpeTrainer& trainer, double seconds) {
  if (call.json) {
    const nlohmann::ordered_json object = {{"verb", "tokenizer train"},  {"output", call.output},
                                           {"words", trainer.words()},   {"vocabulary", trainer.vocabulary()},
                                           {"merges", trainer.merges()}, {"seconds", seconds}};
    return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::ostringstream text;
  text << "words   " << trainer.words() << " different ones\n"
       << "result  " << trainer.vocabulary() << " tokens, " << trainer.merges() << " merges";
  if (trainer.vocabulary() < call.vocabulary) text << "; the text has no more pairs";
  text << "\nto      " << call.output << "\n";
  return text.str();
}

void run(const Call& call) {
  use_target(call);
  check_output(call);
  const Stopwatch watch;
  BpeTrainer trainer;
  for (const std::string& path : call.data) trainer.add_file(path);
  trainer.train(call.vocabulary, call.special_tokens);
  print(summary(call, trainer, watch.seconds()));
  const CleanUp clean_up(call.output);
  trainer.write(call.output);
}

}  // namespace

const Verb kTokenizer = {"tokenizer", "train: learn a byte-level BPE tokenizer from text",
                         "Example:\n"
                         "  qkv tokenizer train --data a.txt b.txt --vocabulary 8000 -o tokenizer.json",
                         add, run};

}  // namespace qkv::cli
