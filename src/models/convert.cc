// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/convert.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "models/json_file.h"
#include "models/weights.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/file_writer.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// What comes along unchanged, where it is there.
constexpr const char* kOtherFiles[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.txt",
                                       "vocab.json",
                                       "merges.txt",
                                       "spiece.model",
                                       "tokenizer.model",
                                       "modules.json",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json",
                                       "1_Pooling/config.json"};

void check(const std::error_code& error, const fs::path& path, const char* action) {
  if (error) throw SystemError(concat(path.string(), ": cannot ", action, ": ", error.message()));
}

/// A hidden folder beside the one to be, gone again unless it takes its place.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& place) : place_(place) {
    std::error_code error;
    require(!fs::exists(fs::symlink_status(place, error)), place.string(),
            ": expected a folder that does not exist yet");
    const fs::path parent = place.parent_path().empty() ? fs::path(".") : place.parent_path();
    path_ = parent / concat(".qkv-", ::getpid());
    fs::create_directory(path_, error);
    check(error, path_, "create this folder");
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  const fs::path& path() const { return path_; }
  void commit() {
    std::error_code error;
    fs::rename(path_, place_, error);
    check(error, place_, "create this folder");
  }

 private:
  fs::path place_, path_;
};

void write_config(const fs::path& from, const fs::path& to, DType dtype) {
  Json json = models::read_json(from.string());
  const char* key = json.contains("dtype") ? "dtype" : "torch_dtype";
  json[key] = dtype == DType::bf16 ? "bfloat16" : "float32";
  FileWriter file(to.string());
  file.append(json.dump(2) + "\n");
  file.commit();
}

void copy_others(const fs::path& from, const fs::path& to) {
  for (const char* name : kOtherFiles) {
    std::error_code error;
    if (!fs::is_regular_file(from / name, error)) continue;
    fs::create_directories((to / name).parent_path(), error);
    check(error, to / name, "create the folder of this file");
    fs::copy_file(from / name, to / name, error);
    check(error, to / name, "write");
  }
}

}  // namespace

void convert_model(const std::string& folder, const std::string& out, DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16, "convert: dtype: expected f32 or bf16, got ", name(dtype));
  const fs::path from = folder;
  fs::path place = out;
  if (!place.has_filename()) place = place.parent_path();
  const ModelConfig config = read_model_config((from / "config.json").string());
  models::Checkpoint checkpoint = models::Checkpoint::read(folder);
  models::bind_weights(checkpoint, config);
  NewFolder target(place);
  std::vector<Tensor> converted_tensors;
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, view] : checkpoint.taken()) {
    if (view.dtype() == dtype) {
      tensors.emplace(name, view);
    } else {
      tensors.emplace(name, converted_tensors.emplace_back(converted(view, dtype)).view());
    }
  }
  write_safetensors((target.path() / "model.safetensors").string(), tensors, {{"format", "pt"}});
  write_config(from / "config.json", target.path() / "config.json", dtype);
  copy_others(from, target.path());
  target.commit();
}

}  // namespace qkv
