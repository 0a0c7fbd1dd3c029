// SPDX-License-Identifier: Apache-2.0
//
// Which files of a folder hold a model's tensors. Names of shards come from a file, so they are checked before any of
// them is opened.
#include <filesystem>

#include "models/checkpoint.h"
#include "models/json_file.h"
#include "qkv/support/error.h"
#include "qkv/tensor/safetensors.h"
#include "tensor/text.h"

namespace qkv::models {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Whether the folder's tensors lie in shards.
bool is_sharded(const fs::path& folder) {
  std::error_code ignored;
  return !fs::exists(folder / kSingle, ignored) && fs::exists(folder / kIndex, ignored);
}

/// The names of tensors that an index promises, by shard.
std::map<std::string, std::set<std::string>> read_index(const std::string& index) {
  const nlohmann::json json = read_json(index);
  require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(), index,
          ": expected an object with the key weight_map, an object");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& item : json["weight_map"].items()) {
    require(item.value().is_string(), index, ": weight_map: ", in_quotes(item.key()), ": expected a file name");
    const auto& shard = item.value().get_ref<const std::string&>();
    require(is_plain_name(shard), index, ": weight_map: expected the name of a file in this folder, got ",
            in_quotes(shard));
    shards[shard].insert(item.key());
  }
  return shards;
}

/// Tensors of every shard, each named by the index exactly once and in the shard it names.
std::map<std::string, Tensor> read_shards(const fs::path& folder, const std::string& index) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [shard, names] : read_index(index)) {
    const std::string path = (folder / shard).string();
    TensorFile file = read_safetensors(path);
    for (const std::string& name : names) {
      require(file.tensors.count(name) != 0, path, ": tensor ", in_quotes(name),
              ", which the index promises, is missing");
    }
    for (auto& [name, tensor] : file.tensors) {
      require(names.count(name) != 0, path, ": tensor ", in_quotes(name), " is not in the index for this file");
      tensors.emplace(name, std::move(tensor));
    }
  }
  return tensors;
}

}  // namespace

Checkpoint Checkpoint::read(const std::string& folder) {
  const bool sharded = is_sharded(folder);
  const std::string path = (fs::path(folder) / (sharded ? kIndex : kSingle)).string();
  return Checkpoint(sharded ? read_shards(folder, path) : read_safetensors(path).tensors, path);
}

std::vector<std::string> weight_files(const std::string& folder) {
  if (!is_sharded(folder)) return {kSingle};
  std::vector<std::string> files{kIndex};
  for (const auto& [shard, names] : read_index((fs::path(folder) / kIndex).string())) files.push_back(shard);
  return files;
}

}  // namespace qkv::models
