// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/generate_text.h"
#include "cli/token_ids.h"
#include "cli/verbs.h"
#include "qkv/generate/generate_request.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

void add_prompt_options(CLI::App& verb, Call& call) {
  GenerateCall& asked = call.generate;
  const char* group = "Prompt, one of";
  const auto text_option = [&](const char* flag, const char* type, const char* help, std::string& target) {
    add_value(verb, call, flag, type, help, [&target](const std::string& text) { target = text; })->group(group);
  };
  text_option("--prompt", "TEXT", "a text", asked.prompt);
  text_option("--prompt-file", "FILE", "a file with a text, taken as it is", asked.prompt_file);
  text_option("--tokens", "IDS", "token ids, decimal, with blanks or commas between; no tokenizer is needed",
              asked.tokens);
  text_option("--prompts", "FILE", "token ids, a prompt a line, continued as one batch", asked.prompts);
}

void add_choice_options(CLI::App& verb, Call& call) {
  GenerateRequest& request = call.generate.request;
  const char* group = "Which tokens come";
  const auto fraction = [&](const char* flag, const char* help, auto& target) {
    add_value(verb, call, flag, "X", help, [flag, &target](const std::string& text) {
      const double value = parse_number(flag, text);
      require(value >= 0 && value <= 1, flag, ": expected a number from 0 to 1, got '", text, "'");
      target = value;
    })->group("Which tokens come");
  };
  add_value(verb, call, "--temperature", "X", "draw from logits divided by X; 0, the default, takes the largest",
            [&](const std::string& text) {
              request.sampling.temperature = parse_number("--temperature", text);
              require(request.sampling.temperature >= 0, "--temperature: expected a number of at least 0, got '", text,
                      "'");
            })
      ->group(group);
  add_value(verb, call, "--top-k", "N", "draw from the N most probable tokens; 0 from all",
            [&](const std::string& text) { request.sampling.top_k = parse_integer("--top-k", text, 0); })
      ->group(group);
  fraction("--top-p", "draw from the most probable tokens that make up X", request.sampling.top_p);
  fraction("--min-p", "draw from tokens at least X times as probable as the first", request.min_p);
  add_value(verb, call, "--seed", "N", "which draws (default 0)", [&](const std::string& text) {
    request.sampling.seed = parse_seed("--seed", text);
  })->group(group);
  add_value(verb, call, "--repetition-penalty", "X", "makes tokens that were there less likely; 1 is off",
            [&](const std::string& text) {
              request.repetition_penalty = parse_number("--repetition-penalty", text);
              require(*request.repetition_penalty > 0, "--repetition-penalty: expected a positive number, got '", text,
                      "'");
            })
      ->group(group);
  add_value(verb, call, "--beams", "N", "search with N beams instead", [&](const std::string& text) {
    request.beams = parse_integer("--beams", text, 1, 1 << 16);
  })->group(group);
  add_value(verb, call, "--draft", "DIR", "a smaller model that proposes tokens; the result is the same",
            [&](const std::string& text) {
              call.generate.draft = text;
              request.has_draft = true;
            })
      ->group(group);
}

void add(CLI::App& verb, Call& call) {
  add_prompt_options(verb, call);
  add_value(verb, call, "--max-tokens", "N", "new tokens at most", [&](const std::string& text) {
    call.generate.request.max_tokens = parse_integer("--max-tokens", text, 0, int64_t{1} << 40);
  })->required();
  verb.add_option("--stop", call.generate.stops, "end before this text; may be given more than once")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  add_choice_options(verb, call);
  add_model_options(verb, call);
}

void check_generate(const Call& call) {
  int sources = 0;
  for (const char* flag : {"--prompt", "--prompt-file", "--tokens", "--prompts"}) sources += call.has(flag) ? 1 : 0;
  require(sources == 1, "expected one of --prompt, --prompt-file, --tokens and --prompts, got ",
          sources == 0 ? "none" : "several");
  const GenerateRequest& request = call.generate.request;
  if (request.beams.value_or(1) == 1) return;
  require(request.sampling.temperature == 0, "--beams and --temperature exclude each other: beams are not drawn");
  require(!call.has("--draft"), "--beams and --draft exclude each other: a draft proposes for one sequence");
}

std::vector<uint32_t> read_prompt_ids(const std::string& where, const std::string& text, const ModelConfig& model) {
  try {
    std::vector<uint32_t> ids = read_ids(text);
    require(!ids.empty(), "expected token ids, decimal, got none");
    for (const uint32_t id : ids) {
      require(id < model.vocabulary, "token ", id, " is not in the vocabulary of ", model.vocabulary);
    }
    return ids;
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemError(path + ": cannot open");
  if (file.peek() == std::char_traits<char>::eof() && !file.bad()) return {};  // copying nothing would be a failure
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.fail()) throw SystemError(path + ": cannot read");
  return text.str();
}

std::vector<std::vector<uint32_t>> read_prompts(const Call& call, const ModelConfig& model, const Tokenizer* tokenizer,
                                                const GenerationConfig& config) {
  const GenerateCall& asked = call.generate;
  if (call.has("--tokens")) return {read_prompt_ids("--tokens", asked.tokens, model)};
  if (call.has("--prompts")) {
    std::istringstream lines(read_file(asked.prompts));
    std::vector<std::vector<uint32_t>> prompts;
    for (std::string line; std::getline(lines, line);) {
      prompts.push_back(read_prompt_ids(concat(asked.prompts, ": line ", prompts.size() + 1), line, model));
    }
    require(!prompts.empty(), asked.prompts, ": expected a list of token ids a line, got an empty file");
    return prompts;
  }
  const bool from_file = call.has("--prompt-file");
  const std::string where = from_file ? asked.prompt_file : "--prompt";
  const std::string text = from_file ? read_file(asked.prompt_file) : asked.prompt;
  const std::vector<uint32_t> ids = prompt_tokens(text, *tokenizer, config, where);
  for (const uint32_t id : ids) {
    require(id < model.vocabulary, where, ": token ", id, " of tokenizer.json is not in the model's vocabulary of ",
            model.vocabulary);
  }
  return {ids};
}

/// Text where text was given, ids where ids were, with --json both.
void report(const Call& call, const Generation& result, const std::optional<std::string>& text) {
  if (call.json) {
    nlohmann::ordered_json object = {{"tokens", result.tokens}, {"text", nullptr}, {"finish", name(result.finish)}};
    if (text) object["text"] = *text;
    return print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  if (call.has("--prompt") || call.has("--prompt-file")) return print("\n");  // the text has been written
  std::string ids;
  for (const uint32_t token : result.tokens) ids += (ids.empty() ? "" : " ") + std::to_string(token);
  print(ids + "\n");
}

void run(const Call& call) {
  check_generate(call);
  use_target(call);
  const ModelConfig model_config = read_model_config(call.model + "/config.json");
  require(model_config.has_decoder(), call.model, ": ", model_config.model_type,
          " is an encoder, which generates nothing");
  const GenerationConfig config = read_generation_config(call.model, model_config);
  GenerateOptions options = options_of(call.generate.request, config);
  std::vector<std::string> stops = config.stops;
  stops.insert(stops.end(), call.generate.stops.begin(), call.generate.stops.end());

  const std::string tokenizer_path = (std::filesystem::path(call.model) / "tokenizer.json").string();
  const bool from_ids = call.has("--tokens") || call.has("--prompts");
  std::optional<Tokenizer> tokenizer;
  if (!from_ids || !stops.empty() || std::filesystem::exists(tokenizer_path)) {
    tokenizer = Tokenizer::read(tokenizer_path);
  }
  const Tokenizer* const decoder = tokenizer ? &*tokenizer : nullptr;
  const std::vector<std::vector<uint32_t>> prompts = read_prompts(call, model_config, decoder, config);

  Screen screen(!from_ids && !call.json);
  GeneratedTexts texts(decoder, stops, prompts.size(), screen);
  texts.watch(options);
  const TransformerOptions machine{.dtype = call.run.dtype, .threads = call.options.threads};
  const Transformer model = Transformer::from_folder(call.model, machine);
  std::optional<Transformer> draft;
  if (call.has("--draft")) draft = Transformer::from_folder(call.generate.draft, machine);
  std::vector<Generation> results = generate(model, prompts, options, draft ? &*draft : nullptr);
  for (size_t n = 0; n < results.size(); ++n) {
    const std::optional<std::string> text = texts.finish(n, results[n]);
    report(call, results[n], text);
  }
}

}  // namespace

const Verb kGenerate = {
    "generate", "continue a prompt",
    "Writes the text that follows, as it comes; for --tokens and --prompts the new ids, a line for\n"
    "each prompt. With --json one object for each prompt: the new \"tokens\", a final end of text\n"
    "included, their \"text\", special tokens left out, and \"finish\": length, end or stop.\n"
    "The folder's generation_config.json holds for what no option says; do_sample, temperature,\n"
    "top_k and top_p there do not.\n"
    "\n"
    "Example:\n"
    "  qkv generate --model gpt2 --prompt \"Attention is\" --max-tokens 40 --temperature 0.8 --seed 1",
    add, run};

}  // namespace qkv::cli
