// SPDX-License-Identifier: Apache-2.0
#include "qkv/search/search_index.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>

#include "models/checkpoint.h"
#include "models/json_file.h"
#include "models/sentence_config.h"
#include "qkv/support/error.h"
#include "search/text_files.h"
#include "tensor/mapped_file.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;

/// Tokens of a passage: a paragraph or two, which one vector can still say.
constexpr int64_t kPassageTokens = 128;
/// Passages that are embedded at a time.
constexpr size_t kBatch = 64;
/// What a model reads beside its weights and the folders of its modules.
constexpr const char* kModelFiles[] = {"config.json",    "config_sentence_transformers.json",
                                       "modules.json",   "sentence_bert_config.json",
                                       "tokenizer.json", "tokenizer_config.json"};

std::string hexadecimal(uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[value >> shift & 15];
  return text;
}

/// The folder that holds a path, absolute; the path itself need not exist.
std::string folder_of(const std::string& path) {
  return fs::weakly_canonical(fs::absolute(path)).parent_path().string();
}

/// Embeddings brought to length 1; a row of zeros stays.
std::vector<float> unit_rows(const SearchModel& model, std::span<const std::string> texts) {
  const Tensor rows = model.embed(texts);
  const Dims expected{static_cast<int64_t>(texts.size()), model.width};
  require(rows.dtype() == DType::f32 && rows.shape() == expected, "search: expected embeddings f32 ", expected,
          ", got ", name(rows.dtype()), " ", rows.shape());
  const auto* values = static_cast<const float*>(rows.view().data());
  std::vector<float> result(values, values + rows.view().elements());
  for (auto row = result.begin(); row != result.end(); row += model.width) {
    double squares = 0;
    for (int64_t i = 0; i < model.width; ++i) squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    require(std::isfinite(squares), "search: an embedding is not finite");
    const double length = squares > 0 ? std::sqrt(squares) : 1;
    for (int64_t i = 0; i < model.width; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / length);
  }
  return result;
}

}  // namespace

std::string model_digest(const std::string& folder) {
  std::set<fs::path> files;  // in the order of their names
  for (const std::string& name : models::weight_files(folder)) files.insert(name);
  std::vector<fs::path> others(std::begin(kModelFiles), std::end(kModelFiles));
  for (const std::string& module : models::module_folders(folder)) others.push_back(fs::path(module) / "config.json");
  for (const fs::path& name : others) {
    std::error_code ignored;
    if (fs::exists(fs::path(folder) / name, ignored)) files.insert(name);
  }
  uint64_t value = 0;
  for (const fs::path& name : files) {
    const auto file = MappedFile::open((fs::path(folder) / name).string());
    value = search::digest(name.string(), value);
    value = search::digest({file->data(), file->size()}, value);
  }
  return hexadecimal(value);
}

SearchIndex::SearchIndex(const std::string& path, const SearchModel& model)
    : path_(path), folder_(folder_of(path)), model_(model) {}

int64_t SearchIndex::passages() const {
  int64_t count = 0;
  for (const auto& [path, file] : files_) count += static_cast<int64_t>(file.passages.size());
  return count;
}

IndexChange SearchIndex::update(const std::vector<std::string>& paths,
                                const std::function<void(int64_t done, int64_t total)>& on_passages) {
  IndexChange change;
  const search::FoundFiles found = search::find_files(paths);
  change.dropped = static_cast<int64_t>(std::erase_if(files_, [&](const auto& entry) {
    std::error_code error;
    const bool is_there = fs::is_regular_file(fs::path(folder_) / entry.first, error);
    return !is_there && error != std::errc::permission_denied;
  }));
  const auto relative = [&](const fs::path& path) { return path.lexically_relative(folder_).string(); };
  for (const fs::path& path : found.unreadable) change.unreadable.push_back(shown(relative(path)));
  std::error_code none;
  const fs::path own = fs::weakly_canonical(path_, none);
  std::map<std::string, File> changed;
  for (const fs::path& path : found.files) {
    if (path == own) continue;
    const std::string name = relative(path);
    std::string bytes;
    try {
      bytes = models::read_text(path.string());
    } catch (const SystemError&) {
      change.unreadable.push_back(shown(name));
      continue;
    }
    if (!search::is_text(bytes)) {
      change.skipped.push_back(shown(name));
      change.dropped += static_cast<int64_t>(files_.erase(name));
      continue;
    }
    const uint64_t digest = search::digest(bytes);
    const auto known = files_.find(name);
    if (known != files_.end() && known->second.digest == digest) {
      ++change.unchanged;
      continue;
    }
    ++(known == files_.end() ? change.added : change.updated);
    const File& file = changed[name] = {digest, cut_passages(bytes, kPassageTokens, model_.count_tokens), {}};
    change.passages += static_cast<int64_t>(file.passages.size());
  }
  embed(changed, on_passages);  // may throw: no passage comes in without its vector
  for (auto& [name, file] : changed) files_[name] = std::move(file);
  return change;
}

void SearchIndex::embed(std::map<std::string, File>& files,
                        const std::function<void(int64_t done, int64_t total)>& on_passages) {
  std::vector<std::string> texts;
  std::vector<File*> owners;
  for (auto& [name, file] : files) {
    for (const Passage& passage : file.passages) {
      texts.push_back(passage.text);
      owners.push_back(&file);
    }
  }
  for (size_t first = 0; first < texts.size(); first += kBatch) {
    const size_t count = std::min(kBatch, texts.size() - first);
    const std::vector<float> rows = unit_rows(model_, std::span(texts).subspan(first, count));
    for (size_t n = 0; n < count; ++n) {
      std::vector<float>& vectors = owners[first + n]->vectors;
      const auto row = rows.begin() + static_cast<int64_t>(n) * model_.width;
      vectors.insert(vectors.end(), row, row + model_.width);
    }
    if (on_passages) on_passages(static_cast<int64_t>(first + count), static_cast<int64_t>(texts.size()));
  }
}

std::string SearchIndex::shown(const std::string& path) const {
  const fs::path real = (fs::path(folder_) / path).lexically_normal();
  std::error_code error;
  const fs::path here = fs::current_path(error);
  const fs::path relative = error ? fs::path() : real.lexically_relative(here);
  return relative.empty() ? real.string() : relative.string();
}

std::vector<SearchResult> SearchIndex::search(const std::string& query, int64_t count) const {
  const std::vector<float> wanted = unit_rows(model_, {&query, 1});
  struct Place {
    double score;
    const std::string* path;
    const Passage* passage;
  };
  std::vector<Place> places;
  for (const auto& [path, file] : files_) {
    for (size_t n = 0; n < file.passages.size(); ++n) {
      const float* vector = file.vectors.data() + n * static_cast<size_t>(model_.width);
      double score = 0;
      for (size_t i = 0; i < wanted.size(); ++i)
        score += static_cast<double>(wanted[i]) * static_cast<double>(vector[i]);
      places.push_back({score, &path, &file.passages[n]});
    }
  }
  const auto kept = static_cast<ptrdiff_t>(std::min(static_cast<size_t>(std::max<int64_t>(count, 0)), places.size()));
  // Of equal scores the first: places are in the order of paths and lines.
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.score > b.score; });
  std::vector<SearchResult> results;
  for (const Place& place : std::span(places).first(static_cast<size_t>(kept))) {
    results.push_back({place.score, shown(*place.path), *place.passage});
  }
  return results;
}

}  // namespace qkv
