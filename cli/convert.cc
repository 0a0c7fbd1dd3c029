// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/convert.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/clean_up.h"
#include "cli/verbs.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) {
  add_value(verb, call, "--out", "DIR", "the folder to write, which must not exist yet", [&](const std::string& text) {
    call.run.out = text;
  })->required();
  add_model_options(verb, call);
}

void report(const Call& call, double seconds) {
  if (!call.json) return print(call.run.out + ": " + std::string(name(call.run.dtype)) + "\n");
  const nlohmann::ordered_json object = {
      {"verb", "convert"}, {"output", call.run.out}, {"dtype", name(call.run.dtype)}, {"seconds", seconds}};
  print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void run(const Call& call) {
  require(!call.run.out.empty(), "--out: expected the name of a folder, got ''");
  use_target(call);
  const Stopwatch watch;
  std::filesystem::path place = call.run.out;
  if (!place.has_filename()) place = place.parent_path();
  const CleanUp clean_up(place);
  convert_model(call.model, call.run.out, call.run.dtype);
  try {
    report(call, watch.seconds());
  } catch (const SystemError&) {  // what cannot be said is an error, and an error leaves no output
    std::error_code ignored;
    std::filesystem::remove_all(call.run.out, ignored);
    throw;
  }
}

}  // namespace

const Verb kConvert = {"convert", "write a model's folder anew, in f32 or bf16",
                       "The new folder holds one model.safetensors, a config.json and the tokenizer's files, for\n"
                       "Transformers to read. --dtype is that of the weights there.\n"
                       "\n"
                       "Example:\n"
                       "  qkv convert --model gpt2 --out gpt2-bf16 --dtype bf16",
                       add, run};

}  // namespace qkv::cli
