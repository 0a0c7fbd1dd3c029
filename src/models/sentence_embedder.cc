// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/sentence_embedder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "models/sentence_config.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"
#include "qkv/text/tokenizer.h"

namespace qkv {

struct SentenceEmbedder::Parts {
  std::shared_ptr<const Transformer> transformer;
  Tokenizer tokenizer;
  models::SentenceConfig config;
};

namespace {

/// Tokens that one pass takes, so that its activations stay in cache.
constexpr size_t kPassTokens = 4096;

/// One kind of pooling of the rows of a text, [tokens, width] in f32, added up in f64.
void pool(models::Pooling pooling, const TensorView& rows, float* result) {
  const int64_t tokens = rows.size(0), width = rows.size(1);
  const auto at = [&](int64_t n, int64_t i) { return load_as<float>(rows.dtype(), rows.at(n * width + i)); };
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    switch (pooling) {
      case models::Pooling::first: sum = tokens > 0 ? at(0, i) : 0; break;
      case models::Pooling::last: sum = tokens > 0 ? at(tokens - 1, i) : 0; break;
      case models::Pooling::largest:
        sum = tokens > 0 ? at(0, i) : 0;
        for (int64_t n = 1; n < tokens; ++n) sum = std::max<double>(sum, at(n, i));
        break;
      case models::Pooling::mean:
      case models::Pooling::mean_sqrt: {
        for (int64_t n = 0; n < tokens; ++n) sum += at(n, i);
        const auto count = static_cast<double>(std::max<int64_t>(tokens, 1));
        sum /= pooling == models::Pooling::mean ? count : std::sqrt(count);
        break;
      }
      case models::Pooling::weighted_mean: {
        for (int64_t n = 0; n < tokens; ++n) sum += static_cast<double>(n + 1) * at(n, i);
        sum /= std::max(0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1), 1.0);
        break;
      }
    }
    result[i] = static_cast<float>(sum);
  }
}

/// To length 1; a row of zeros stays.
void normalize_row(float* row, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(row[i]) * row[i];
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (int64_t i = 0; i < width; ++i) row[i] = static_cast<float>(row[i] / length);
}

/// The tokens of all texts, one text after the other.
struct Tokens {
  std::vector<uint32_t> ids;
  std::vector<int64_t> starts{0};
};

Tokens tokenize(const Tokenizer& tokenizer, const models::SentenceConfig& config, std::span<const std::string> texts,
                int threads) {
  const EncodeOptions options{.offsets = false, .max_length = config.max_length};
  const auto count = static_cast<int64_t>(texts.size());
  std::vector<TokenizerWorkspace> workspaces(static_cast<size_t>(parallel_workers(count, threads)));
  std::vector<Encoding> encodings(texts.size());
  parallel_for(count, threads, [&](int64_t index, int worker) {
    const auto n = static_cast<size_t>(index);
    try {
      const std::string text = config.prompt.empty() ? std::string() : config.prompt + texts[n];
      tokenizer.encode(config.prompt.empty() ? texts[n] : text, options, workspaces[static_cast<size_t>(worker)],
                       encodings[n]);
    } catch (const Error& error) {
      fail("text ", n + 1, ": ", error.what());
    }
  });
  Tokens tokens;
  for (const Encoding& encoding : encodings) {
    tokens.ids.insert(tokens.ids.end(), encoding.ids.begin(), encoding.ids.end());
    tokens.starts.push_back(static_cast<int64_t>(tokens.ids.size()));
  }
  return tokens;
}

}  // namespace

SentenceEmbedder::SentenceEmbedder(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
SentenceEmbedder::SentenceEmbedder(SentenceEmbedder&&) noexcept = default;
SentenceEmbedder& SentenceEmbedder::operator=(SentenceEmbedder&&) noexcept = default;
SentenceEmbedder::~SentenceEmbedder() = default;

SentenceEmbedder SentenceEmbedder::from_folder(const std::string& folder, const TransformerOptions& options) {
  return from_folder(folder, std::make_shared<const Transformer>(Transformer::from_folder(folder, options)));
}

SentenceEmbedder SentenceEmbedder::from_folder(const std::string& folder,
                                               std::shared_ptr<const Transformer> transformer) {
  const models::SentenceConfig config = models::read_sentence_config(folder, transformer->config());
  Tokenizer tokenizer = Tokenizer::read((std::filesystem::path(folder) / "tokenizer.json").string());
  return SentenceEmbedder(std::make_unique<const Parts>(Parts{std::move(transformer), std::move(tokenizer), config}));
}

const Transformer& SentenceEmbedder::transformer() const { return *parts_->transformer; }

int64_t SentenceEmbedder::width() const {
  return transformer().config().width * static_cast<int64_t>(parts_->config.pooling.size());
}

Tensor SentenceEmbedder::embed(std::span<const std::string> texts) const {
  const Transformer& transformer = *parts_->transformer;
  const int64_t model_width = transformer.config().width;
  const Tokens tokens = tokenize(parts_->tokenizer, parts_->config, texts, transformer.options().threads);
  Tensor result(DType::f32, {static_cast<int64_t>(texts.size()), width()});
  for (size_t first = 0, last = 0; first < texts.size(); first = last) {
    std::vector<int64_t> starts{0};
    const int64_t begin = tokens.starts[first];
    do {
      ++last;
      starts.push_back(tokens.starts[last] - begin);
    } while (last < texts.size() && static_cast<size_t>(tokens.starts[last + 1] - begin) <= kPassTokens);
    const std::span<const uint32_t> ids(tokens.ids.data() + begin, static_cast<size_t>(starts.back()));
    const Tensor hidden = transformer.hidden({ids, starts});
    const MutableTensorView all = result.mutable_view();
    parallel_for(static_cast<int64_t>(last - first), transformer.options().threads, [&](int64_t index, int) {
      const auto n = static_cast<size_t>(index);
      const TensorView rows(hidden.dtype(), hidden.view().at(starts[n] * model_width),
                            {starts[n + 1] - starts[n], model_width});
      auto* target = static_cast<float*>(all.at((static_cast<int64_t>(first) + index) * width()));
      for (size_t kind = 0; kind < parts_->config.pooling.size(); ++kind) {
        pool(parts_->config.pooling[kind], rows, target + static_cast<int64_t>(kind) * model_width);
      }
      if (parts_->config.normalize) normalize_row(target, width());
    });
  }
  return result;
}

}  // namespace qkv
