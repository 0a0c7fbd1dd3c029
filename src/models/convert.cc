// SPDX-License-Identifier: Apache-2.0
#include "qkv/models/convert.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "models/json_file.h"
#include "models/sentence_config.h"
#include "models/weights.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "qkv/tensor/staging_folder.h"
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
                                       "chat_template.jinja",
                                       "vocab.txt",
                                       "vocab.json",
                                       "merges.txt",
                                       "spiece.model",
                                       "tokenizer.model",
                                       "modules.json",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json"};

void check(const std::error_code& error, const fs::path& path) {
  if (error) throw SystemError(concat(path.string(), ": cannot write: ", error.message()));
}

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
    fs::copy_file(from / name, to / name, error);
    check(error, to / name);
  }
  for (const std::string& name : models::module_folders(from.string())) {
    std::error_code error;
    if (!fs::is_directory(from / name, error)) continue;
    fs::copy(from / name, to / name, fs::copy_options::recursive, error);
    check(error, to / name);
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
  std::error_code error;
  require(!fs::exists(fs::symlink_status(place, error)), place.string(), ": expected a folder that does not exist yet");
  StagingFolder target(folder_around(place));
  std::vector<Tensor> converted_tensors;
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, view] : checkpoint.parameters()) {
    if (view.dtype() == dtype || !is_floating(view.dtype())) {
      tensors.emplace(name, view);
    } else {
      tensors.emplace(name, converted_tensors.emplace_back(converted(view, dtype)).view());
    }
  }
  write_safetensors((target.path() / "model.safetensors").string(), tensors, {{"format", "pt"}});
  write_config(from / "config.json", target.path() / "config.json", dtype);
  copy_others(from, target.path());
  target.become(place);
}

}  // namespace qkv
