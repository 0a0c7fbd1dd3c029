// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/numbers.h"
#include "cli/problem_file.h"
#include "qkv/attention.h"
#include "qkv/generate/generate_request.h"

namespace qkv::cli {

/// What a command line says to a model.
struct ModelCall {
  DType dtype = DType::f32;
  std::string tokens, decoder_tokens;                    ///< ids
  bool cached = false;                                   ///< of `logits`
  int64_t count = 0, memory_count = 0, cache_count = 0;  ///< tokens, of `cost`
  bool measure = false;                                  ///< likewise
  std::string out;                                       ///< of `convert`: a folder
};

/// What a command line says to `generate`.
struct GenerateCall {
  std::string prompt, prompt_file, tokens, prompts;  ///< one of them
  std::string draft;                                 ///< a folder
  std::vector<std::string> stops;
  GenerateRequest request;
};

/// What a command line says to `search`.
struct SearchCall {
  std::string index, query;
  std::vector<std::string> add;  ///< files and folders
  int64_t results = 5;
};

/// What one command line says.
struct Call {
  ProblemSource source;
  std::string output;
  AttentionOptions options;  ///< the numbers; bound_options adds the tensors
  std::optional<DType> dtype;
  std::string target;
  std::optional<Tile> tile;
  std::optional<EdgeRequest> edges;
  std::string shell;                                              ///< of `completion`
  std::string model;                                              ///< a folder with a model, of the verbs that use one
  std::vector<std::string> data;                                  ///< of `tokenizer train`: files of text
  std::vector<std::string> special_tokens{"<|endoftext|>"};       ///< likewise
  int64_t vocabulary = 0;                                         ///< likewise
  bool decode = false, with_offsets = false, no_special = false;  ///< of `tokenize`
  ModelCall run;                                                  ///< of the verbs that run a model
  GenerateCall generate;
  SearchCall search;
  std::vector<std::string> bench;  ///< of `bench`: the words that follow it
  bool weights = false;
  bool check = false;
  bool json = false;
  std::set<std::string> given;  ///< options that were there, with their dashes

  bool has(const std::string& flag) const { return given.count(flag) != 0; }
};

/// IN, -o, one option per tensor that the verb reads, and everything that shapes the operation. What an option says
/// lands in `call`, which must outlive `verb`; a value that cannot be read throws Error.
void add_problem_options(CLI::App& verb, Call& call, Reads reads);
/// --model DIR, --dtype f32|bf16, and what follows.
void add_model_options(CLI::App& verb, Call& call);
/// --dtype f32|bf16 of a verb that computes nothing in it, for all verbs of models take it.
void add_idle_dtype(CLI::App& verb, Call& call);
/// --threads, --target, --json.
void add_machine_options(CLI::App& verb, Call& call);
/// One option whose value is handed to `set`.
CLI::Option* add_value(CLI::App& verb, Call& call, const std::string& flag, const std::string& value,
                       const std::string& help, std::function<void(const std::string&)> set);
/// One option without a value.
CLI::Option* add_switch(CLI::App& verb, bool& on, const std::string& flag, const std::string& help);

/// Refuses options that do not go together, whatever the files hold.
void check_call(const Call& call);
/// The options of the operation with the tensors of the problem; refuses an option without its tensor, and the reverse.
AttentionOptions bound_options(const Call& call, const ProblemFile& problem);

/// The tangents that the problem holds.
AttentionTangents tangents_of(const ProblemFile& problem);

/// Makes --target the instruction set of all that follows; returns the name of the one in use.
std::string use_target(const Call& call);
/// How many threads the call will use.
int thread_count(const Call& call);

}  // namespace qkv::cli
