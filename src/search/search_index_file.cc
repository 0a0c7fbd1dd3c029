// SPDX-License-Identifier: Apache-2.0
// The file: a .safetensors with
//   vectors [N, width] f32          line [N] i64      text [bytes] u8, text_end [N] i64
//   digest [F] i64                  passage_end [F] i64   path [bytes] u8, path_end [F] i64
// for N passages of F files, in order; `_end` says where each one ends in the array of bytes, or among the passages.
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "qkv/search/search_index.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "text/utf8.h"

namespace qkv {
namespace {

constexpr const char* kFormat = "qkv search index 1";

/// An array of one axis, filled from a range.
template <class T>
Tensor array(const std::vector<T>& values) {
  Tensor tensor(DTypeOf<T>::value, {static_cast<int64_t>(values.size())});
  if (!values.empty()) std::memcpy(tensor.mutable_view().data(), values.data(), values.size() * sizeof(T));
  return tensor;
}

/// Texts one after the other.
struct Texts {
  std::vector<uint8_t> bytes;
  std::vector<int64_t> ends;
  void add(const std::string& text) {
    bytes.insert(bytes.end(), text.begin(), text.end());
    ends.push_back(static_cast<int64_t>(bytes.size()));
  }
};

/// The arrays of a file, each checked as it is asked for.
class Arrays {
 public:
  Arrays(const TensorFile& file, std::string name) : file_(file), name_(std::move(name)) {}

  template <class T>
  std::span<const T> get(const char* key, const Dims& shape) const {
    const TensorView view = find(key);
    require(view.dtype() == DTypeOf<T>::value && view.shape() == shape, name_, ": ", key, ": expected ",
            qkv::name(DTypeOf<T>::value), " ", shape, ", got ", qkv::name(view.dtype()), " ", view.shape());
    return {static_cast<const T*>(view.data()), static_cast<size_t>(view.elements())};
  }
  /// The length of an array of one axis.
  int64_t length(const char* key) const {
    const TensorView view = find(key);
    require(view.rank() == 1, name_, ": ", key, ": expected one axis, got ", view.shape());
    return view.size(0);
  }
  /// Ends that ascend to `last`.
  std::span<const int64_t> ends(const char* key, int64_t count, int64_t last) const {
    const auto ends = get<int64_t>(key, {count});
    int64_t before = 0;
    for (const int64_t end : ends) {
      require(end >= before && end <= last, name_, ": ", key, ": ", end, " comes after ", before, ", of ", last);
      before = end;
    }
    require(before == last, name_, ": ", key, ": ends at ", before, ", expected ", last);
    return ends;
  }
  /// Texts, one after the other.
  std::vector<std::string> texts(const char* key, const char* end_key, int64_t count) const {
    const int64_t size = length(key);
    const auto bytes = get<uint8_t>(key, {size});
    std::vector<std::string> texts;
    int64_t begin = 0;
    for (const int64_t end : ends(end_key, count, size)) {
      texts.emplace_back(bytes.begin() + begin, bytes.begin() + end);
      begin = end;
    }
    return texts;
  }

 private:
  TensorView find(const char* key) const {
    const auto place = file_.tensors.find(key);
    require(place != file_.tensors.end(), name_, ": the array ", key, " of a search index is missing");
    return place->second.view();
  }

  const TensorFile& file_;
  std::string name_;
};

void check_metadata(const TensorFile& file, const std::string& path, const SearchModel& model) {
  const auto value = [&](const char* key) {
    const auto place = file.metadata.find(key);
    return place == file.metadata.end() ? std::string() : place->second;
  };
  require(value("format") == kFormat, path, ": not a search index, or one of another version");
  require(value("model") == model.name, path, ": made with another model; a model's vectors say nothing to others");
}

}  // namespace

void SearchIndex::write() const {
  std::vector<float> vectors;
  std::vector<int64_t> lines, digests, passage_ends;
  Texts texts, paths;
  for (const auto& [path, file] : files_) {
    vectors.insert(vectors.end(), file.vectors.begin(), file.vectors.end());
    for (const Passage& passage : file.passages) {
      lines.push_back(passage.line);
      texts.add(passage.text);
    }
    digests.push_back(std::bit_cast<int64_t>(file.digest));
    passage_ends.push_back(static_cast<int64_t>(lines.size()));
    paths.add(path);
  }
  const std::map<std::string, Tensor> arrays{
      {"line", array(lines)},         {"text", array(texts.bytes)},         {"text_end", array(texts.ends)},
      {"digest", array(digests)},     {"passage_end", array(passage_ends)}, {"path", array(paths.bytes)},
      {"path_end", array(paths.ends)}};
  std::map<std::string, TensorView> views;
  for (const auto& [key, tensor] : arrays) views[key] = tensor.view();
  views["vectors"] = TensorView(vectors.data(), {static_cast<int64_t>(lines.size()), model_.width});
  write_safetensors(path_, views, {{"format", kFormat}, {"model", model_.name}});
}

SearchIndex SearchIndex::read(const std::string& path, const SearchModel& model) {
  const TensorFile file = read_safetensors(path);
  check_metadata(file, path, model);
  const Arrays arrays(file, path);
  const int64_t passages = arrays.length("line"), files = arrays.length("digest");
  const auto vectors = arrays.get<float>("vectors", {passages, model.width});
  for (const float value : vectors) {
    require(std::abs(value) <= 1.001f, path, ": vectors: expected rows of length 1, got ", value);
  }
  const auto lines = arrays.get<int64_t>("line", {passages});
  const auto digests = arrays.get<int64_t>("digest", {files});
  const std::vector<std::string> texts = arrays.texts("text", "text_end", passages);
  for (const std::string& text : texts) {  // a path may be any bytes
    require(text::utf8_first_invalid(text) == std::string::npos, path, ": text: a text is not valid UTF-8");
  }
  const std::vector<std::string> paths = arrays.texts("path", "path_end", files);
  SearchIndex index(path, model);
  int64_t begin = 0;
  for (int64_t f = 0; const int64_t end : arrays.ends("passage_end", files, passages)) {
    const auto n = static_cast<size_t>(f++);
    const auto [place, is_new] = index.files_.try_emplace(paths[n]);
    require(is_new, path, ": path: ", paths[n], " occurs twice");
    File& entry = place->second;
    entry.digest = std::bit_cast<uint64_t>(digests[n]);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t line = lines[static_cast<size_t>(p)];
      require(line >= 1, path, ": line: expected numbers from 1 on, got ", line);
      entry.passages.push_back({line, texts[static_cast<size_t>(p)]});
    }
    entry.vectors.assign(vectors.begin() + begin * model.width, vectors.begin() + end * model.width);
    begin = end;
  }
  return index;
}

}  // namespace qkv
