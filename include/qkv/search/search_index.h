// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "qkv/search/passages.h"
#include "qkv/tensor/tensor.h"

namespace qkv {

/// [texts, width], f32; the index brings rows to length 1.
using EmbedTexts = std::function<Tensor(std::span<const std::string> texts)>;

/// What a search needs of a model.
struct SearchModel {
  std::string name;  ///< tells it from others: see model_digest
  int64_t width = 0;
  EmbedTexts embed;
  CountTokens count_tokens;
};

/// A word that depends on what a sentence embedder reads of a model's folder: on the bytes of these files and their
/// names. Throws SystemError when one cannot be read.
std::string model_digest(const std::string& folder);

struct SearchResult {
  double score = 0;  ///< cosine of query and passage
  std::string path;
  Passage passage;
};

/// What an update did, in numbers of files; the files that are not text, and those, or folders, that cannot be read.
struct IndexChange {
  int64_t added = 0, updated = 0, unchanged = 0, dropped = 0;
  int64_t passages = 0;  ///< embedded
  std::vector<std::string> skipped, unreadable;
};

/// Passages of files and their embeddings. Paths are relative to the folder that the index lies in, so that both can be
/// moved together.
class SearchIndex {
 public:
  /// An index without passages, to be written to `path`.
  SearchIndex(const std::string& path, const SearchModel& model);
  /// Reads what write() wrote. Throws SystemError when it cannot be read, and Error when it is not an index, when it is
  /// damaged, and when it was made with another model.
  static SearchIndex read(const std::string& path, const SearchModel& model);
  /// Writes a .safetensors file beside its place and renames it there.
  void write() const;

  /// Takes in files, and those of folders at any depth but for names that begin with a dot. A file that has changed
  /// since it was taken in is taken in anew; any file of the index that is gone is dropped. Files that hold a zero byte
  /// or are not UTF-8 are left out; what the index holds of those that cannot be read stays. `on_passages` is told how
  /// many passages are embedded, and of how many. Throws SystemError when a path does not exist. When it throws, files
  /// that have changed are as they were.
  IndexChange update(const std::vector<std::string>& paths,
                     const std::function<void(int64_t done, int64_t total)>& on_passages = {});

  /// The passages nearest to a query, best first; of equal ones those of the first path and line. Paths are relative to
  /// the present folder, if that is possible.
  std::vector<SearchResult> search(const std::string& query, int64_t count) const;

  int64_t files() const { return static_cast<int64_t>(files_.size()); }
  int64_t passages() const;

 private:
  struct File {
    uint64_t digest = 0;  ///< of its bytes
    std::vector<Passage> passages;
    std::vector<float> vectors;  ///< [passages, width]
  };
  std::string shown(const std::string& path) const;
  void embed(std::map<std::string, File>& files, const std::function<void(int64_t done, int64_t total)>& on_passages);

  std::string path_, folder_;
  SearchModel model_;
  std::map<std::string, File> files_;  ///< by path, relative to folder_
};

}  // namespace qkv
