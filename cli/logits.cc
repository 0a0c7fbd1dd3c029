// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/model_files.h"
#include "cli/token_ids.h"
#include "cli/verbs.h"
#include "qkv/models/transformer.h"
#include "qkv/support/error.h"

namespace qkv::cli {
namespace {

void add(CLI::App& verb, Call& call) {
  add_value(verb, call, "--tokens", "IDS", "token ids, decimal, with blanks or commas between",
            [&](const std::string& text) { call.run.tokens = text; })
      ->required();
  add_value(verb, call, "--decoder-tokens", "IDS", "of an encoder-decoder: the decoder's, start token included",
            [&](const std::string& text) { call.run.decoder_tokens = text; });
  add_switch(verb, call.run.cached, "--cached", "feed the decoder one token at a time, through its cache");
  add_value(verb, call, "-o,--output", "OUT", "where logits go: NAME.npy or NAME.safetensors",
            [&](const std::string& text) { call.output = text; })
      ->required();
  add_model_options(verb, call);
}

std::vector<uint32_t> ids_of(const char* flag, const std::string& text) {
  try {
    std::vector<uint32_t> ids = read_ids(text);
    require(!ids.empty(), "expected token ids, decimal, got none");
    return ids;
  } catch (const Error& error) {
    fail(flag, ": ", error.what());
  }
}

/// What does not fit the kind of model, before its weights are read.
void check_kind(const Call& call, const ModelConfig& config) {
  const bool both = config.kind == ModelKind::encoder_decoder, given = call.has("--decoder-tokens");
  require(!both || given, "--decoder-tokens: ", config.model_type, " is an encoder-decoder and needs them");
  require(both || !given, "--decoder-tokens: only an encoder-decoder takes them, and ", config.model_type, " is none");
  require(!call.run.cached || config.has_decoder(), "--cached: ", config.model_type,
          " is an encoder: without a causal decoder there is no cache");
}

/// Logits [T, vocabulary], fed one token at a time.
Tensor cached_logits(const Transformer& model, const std::vector<uint32_t>& tokens, DecoderState state) {
  const int64_t vocabulary = model.config().vocabulary;
  Tensor logits(DType::f32, {static_cast<int64_t>(tokens.size()), vocabulary});
  for (size_t n = 0; n < tokens.size(); ++n) {
    const Tensor row = model.decode(state, {.tokens = {&tokens[n], 1}});
    copy(row.view(),
         MutableTensorView(DType::f32, logits.mutable_view().at(static_cast<int64_t>(n) * vocabulary), row.shape()));
  }
  return logits;
}

Tensor compute(const Call& call, const Transformer& model, const std::vector<uint32_t>& tokens,
               const std::vector<uint32_t>& decoder_tokens) {
  const TokenBatch batch{.tokens = tokens};
  if (model.config().kind == ModelKind::encoder_decoder) {
    return call.run.cached ? cached_logits(model, decoder_tokens, model.start(batch))
                           : model.logits(batch, {.tokens = decoder_tokens});
  }
  return call.run.cached ? cached_logits(model, tokens, model.start(1)) : model.logits(batch);
}

void report(const Call& call, const Tensor& logits, const std::string& target, double seconds) {
  if (call.json) {
    const nlohmann::ordered_json object = {
        {"verb", "logits"}, {"output", call.output},         {"shape", {logits.shape()[0], logits.shape()[1]}},
        {"target", target}, {"threads", thread_count(call)}, {"seconds", seconds}};
    return print(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  std::ostringstream text;
  text.precision(3);
  text << "logits  " << logits.shape() << " f32\nto      " << call.output << "\nwith    " << target << ", "
       << thread_count(call) << (thread_count(call) == 1 ? " thread, " : " threads, ") << seconds << " s\n";
  print(text.str());
}

void run(const Call& call) {
  const std::string target = use_target(call);
  const std::vector<uint32_t> tokens = ids_of("--tokens", call.run.tokens);
  std::vector<uint32_t> decoder_tokens;
  if (call.has("--decoder-tokens")) decoder_tokens = ids_of("--decoder-tokens", call.run.decoder_tokens);
  check_kind(call, read_model_config(call.model + "/config.json"));
  Arrays results;
  results["out"] = Tensor(DType::f32, {0, 0});
  const Output output(call.output, model_files(call.model), results);
  const Transformer model =
      Transformer::from_folder(call.model, {.dtype = call.run.dtype, .threads = call.options.threads});
  const Stopwatch watch;
  results["out"] = compute(call, model, tokens, decoder_tokens);
  report(call, results["out"], target, watch.seconds());
  output.write(results);
}

}  // namespace

const Verb kLogits = {"logits", "a model's logits for token ids",
                      "Writes f32 [T, vocabulary]: of a decoder for every token, of an encoder through its\n"
                      "masked-language-model head, of an encoder-decoder for every decoder token. With --cached the\n"
                      "bits are the same.\n"
                      "\n"
                      "Example:\n"
                      "  qkv logits --model gpt2 --tokens \"464 3290 318\" -o logits.npy",
                      add, run};

}  // namespace qkv::cli
