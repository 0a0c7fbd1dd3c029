// SPDX-License-Identifier: Apache-2.0
#include "python/src/transformer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/generate_text.h"
#include "python/src/arrays.h"
#include "python/src/language_model.h"
#include "python/src/run.h"
#include "qkv/support/error.h"

namespace qkv::python {
namespace {

using Ids = std::vector<uint32_t>;

/// Sequences one after the other.
struct Batch {
  Ids tokens;
  std::vector<int64_t> starts{0};

  explicit Batch(const std::vector<Ids>& sequences) {
    for (const Ids& ids : sequences) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      starts.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
  operator TokenBatch() const { return {tokens, starts}; }
};

std::unique_ptr<LanguageModel> open(const std::string& folder, const std::string& dtype, int threads) {
  require(dtype == "float32" || dtype == "bfloat16", "dtype: expected 'float32' or 'bfloat16', got '", dtype, "'");
  require(threads >= 0 && threads <= 4096, "threads: expected 0 (all) to 4096, got ", threads);
  std::unique_ptr<LanguageModel> model;
  run([&] {
    model = std::make_unique<LanguageModel>(
        folder, TransformerOptions{.dtype = dtype == "float32" ? DType::f32 : DType::bf16, .threads = threads});
  });
  return model;
}

nb::object logits(const LanguageModel& model, const std::vector<Ids>& sequences,
                  const std::optional<std::vector<Ids>>& decoder_sequences) {
  const ModelConfig& config = model.transformer().config();
  const bool is_pair = config.kind == ModelKind::encoder_decoder;
  require(is_pair || !decoder_sequences, "logits: ", config.model_type, " takes no decoder_tokens");
  require(!is_pair || decoder_sequences, "logits: ", config.model_type, " needs decoder_tokens");
  const Batch batch(sequences);
  Tensor result;
  run([&] {
    result = is_pair ? model.transformer().logits(batch, Batch(*decoder_sequences)) : model.transformer().logits(batch);
  });
  return copied(result);
}

nb::object embed(const LanguageModel& model, const std::vector<std::string>& texts) {
  Tensor result;
  run([&] { result = model.embed(texts); });
  return copied(result);
}

/// Calls on_piece(sequence, token, text), the token None for the end of a text; false ends the sequence.
class Listener {
 public:
  Listener(nb::handle on_piece, const LanguageModel& model, const std::vector<std::string>& stops, size_t prompts)
      : on_piece_(on_piece), tokenizer_(model.tokenizer() ? &*model.tokenizer() : nullptr), stops_(stops) {
    if (!stops.empty()) tokenizer_ = &model.needed_tokenizer();
    for (size_t n = 0; tokenizer_ != nullptr && n < prompts; ++n) texts_.emplace_back(*tokenizer_, stops);
  }

  void watch(GenerateOptions& options) {
    streams_ = options.beams.beams <= 1;
    if (streams_) {
      options.on_token = [this](int64_t sequence, uint32_t token) { return add(sequence, token); };
    } else if (!stops_.empty()) {
      options.stops = [this](std::span<const uint32_t> tokens) {
        cli::GeneratedText text(*tokenizer_, stops_);
        for (const uint32_t token : tokens) text.add(token);
        text.finish();
        return text.stopped();
      };
    }
  }

  nb::dict finish(size_t prompt, const Generation& generation) {
    nb::dict result;
    Finish finish = generation.finish;
    result["tokens"] = generation.tokens;
    result["text"] = nb::none();
    if (tokenizer_ != nullptr) {
      const auto sequence = static_cast<int64_t>(prompt);
      for (size_t n = 0; !streams_ && n < generation.tokens.size(); ++n) add(sequence, generation.tokens[n]);
      cli::GeneratedText& text = texts_[prompt];
      tell(sequence, nb::none(), text.finish());
      if (text.stopped()) finish = Finish::stop;
      result["text"] = text.text();
    }
    result["finish"] = std::string(name(finish));
    return result;
  }

 private:
  bool add(int64_t sequence, uint32_t token) {
    std::string piece;
    bool goes_on = true;
    if (tokenizer_ != nullptr) {
      cli::GeneratedText& text = texts_[static_cast<size_t>(sequence)];
      piece = text.add(token);
      goes_on = !text.stopped();
    }
    const nb::gil_scoped_acquire acquire;
    return tell(sequence, nb::int_(token), piece) && goes_on;
  }

  bool tell(int64_t sequence, const nb::object& token, const std::string& piece) const {
    return on_piece_.is_none() || nb::cast<bool>(on_piece_(sequence, token, piece));
  }

  nb::handle on_piece_;
  const Tokenizer* tokenizer_;
  std::vector<std::string> stops_;
  std::vector<cli::GeneratedText> texts_;
  bool streams_ = true;
};

nb::list generate_from(const LanguageModel& model, const std::vector<Ids>& prompts, const GenerateRequest& request,
                       std::vector<std::string> stops, const LanguageModel* draft, nb::handle on_piece) {
  GenerateOptions options;
  run([&] {
    options = model.options_of(request);
    stops = model.stops(std::move(stops));
  });
  Listener listener(on_piece, model, stops, prompts.size());
  listener.watch(options);
  std::vector<Generation> generations;
  run([&] {
    generations = generate(model.transformer(), prompts, options, draft == nullptr ? nullptr : &draft->transformer());
  });
  nb::list results;
  for (size_t n = 0; n < generations.size(); ++n) results.append(listener.finish(n, generations[n]));
  return results;
}

nb::dict describe(const LanguageModel& model) {
  const ModelConfig& config = model.transformer().config();
  nb::dict result;
  result["model_type"] = config.model_type;
  result["kind"] = std::string(name(config.kind));
  result["vocabulary"] = config.vocabulary;
  result["width"] = config.width;
  result["layers"] = config.main_stack().layers.size();
  result["heads"] = config.main_stack().heads;
  result["kv_heads"] = config.main_stack().kv_heads;
  result["positions"] = config.positions;
  return result;
}

}  // namespace

void add_transformer(nb::module_& module) {
  nb::class_<LanguageModel>(module, "LanguageModel", "What qkv.Transformer is made of.")
      .def_static("open", &open, nb::arg("folder"), nb::arg("dtype"), nb::arg("threads"))
      .def("describe", &describe)
      .def_prop_ro(
          "tokenizer", [](const LanguageModel& model) { return model.tokenizer() ? &*model.tokenizer() : nullptr; },
          nb::rv_policy::reference_internal)
      .def("prompt",
           [](const LanguageModel& model, const std::string& text) {
             const nb::gil_scoped_release release;
             return model.prompt(text);
           })
      .def("logits", &logits, nb::arg("sequences"), nb::arg("decoder_sequences").none())
      .def("embed", &embed, nb::arg("texts"))
      .def(
          "generate",
          [](const LanguageModel& model, const std::vector<Ids>& prompts, int64_t max_tokens, double temperature,
             int64_t top_k, double top_p, std::optional<double> min_p, std::optional<double> repetition_penalty,
             uint64_t seed, std::optional<int64_t> beams, const std::vector<std::string>& stop,
             const LanguageModel* draft, nb::handle on_piece) {
            const SamplingOptions sampling{.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
            return generate_from(model, prompts,
                                 {max_tokens, sampling, min_p, repetition_penalty, beams, draft != nullptr}, stop,
                                 draft, on_piece);
          },
          nb::arg("prompts"), nb::kw_only(), nb::arg("max_tokens"), nb::arg("temperature"), nb::arg("top_k"),
          nb::arg("top_p"), nb::arg("min_p").none(), nb::arg("repetition_penalty").none(), nb::arg("seed"),
          nb::arg("beams").none(), nb::arg("stop"), nb::arg("draft").none(), nb::arg("on_piece").none());
}

}  // namespace qkv::python
