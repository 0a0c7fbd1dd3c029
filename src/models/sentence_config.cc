// SPDX-License-Identifier: Apache-2.0
//
// The files of sentence-transformers: modules.json lists what happens to a text, each module has a folder.
#include "models/sentence_config.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "models/config_fields.h"
#include "models/json_file.h"
#include "qkv/support/error.h"
#include "tensor/text.h"

namespace qkv::models {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

constexpr std::pair<const char*, Pooling> kModes[] = {
    {"cls", Pooling::first},
    {"max", Pooling::largest},
    {"mean", Pooling::mean},
    {"mean_sqrt_len_tokens", Pooling::mean_sqrt},
    {"weightedmean", Pooling::weighted_mean},
    {"lasttoken", Pooling::last},
};
/// The same as switches of older files, in the order in which results stand.
constexpr std::pair<const char*, Pooling> kSwitches[] = {
    {"pooling_mode_cls_token", Pooling::first},
    {"pooling_mode_max_tokens", Pooling::largest},
    {"pooling_mode_mean_tokens", Pooling::mean},
    {"pooling_mode_mean_sqrt_len_tokens", Pooling::mean_sqrt},
    {"pooling_mode_weightedmean_tokens", Pooling::weighted_mean},
    {"pooling_mode_lasttoken", Pooling::last},
};

Pooling parse_mode(const std::string& mode, const ConfigFields& fields) {
  for (const auto& [name, pooling] : kModes) {
    if (mode == name) return pooling;
  }
  fail(fields.where(), ": pooling_mode \"", mode, "\" is not supported");
}

std::vector<Pooling> parse_pooling(const ConfigFields& fields, const ModelConfig& model) {
  const char* width = fields.has("embedding_dimension") ? "embedding_dimension" : "word_embedding_dimension";
  require(fields.size_or(width, model.width) == model.width, fields.where(), ": ", width, ": expected ", model.width,
          ", the model's width, got ", fields.size_or(width, 1));
  std::vector<Pooling> modes;
  const Json* mode = fields.find("pooling_mode");
  if (mode != nullptr && mode->is_array()) {
    for (const std::string& name : fields.strings("pooling_mode")) modes.push_back(parse_mode(name, fields));
  } else if (mode != nullptr) {
    modes.push_back(parse_mode(fields.string("pooling_mode"), fields));
  } else {
    for (const auto& [name, pooling] : kSwitches) {
      if (fields.boolean_or(name, false)) modes.push_back(pooling);
    }
  }
  if (modes.empty()) modes.push_back(Pooling::mean);
  return modes;
}

/// The text that goes before every other, where the folder names one.
std::string parse_prompt(const fs::path& folder) {
  const fs::path path = folder / "config_sentence_transformers.json";
  if (!is_there(path)) return "";
  const Json json = read_json(path.string());
  const ConfigFields fields(json, path.string());
  if (!fields.has("default_prompt_name")) return "";
  require(fields.has("prompts"), fields.where(), ": default_prompt_name names a prompt, but there are no prompts");
  const ConfigFields prompts(*fields.find("prompts"), fields.where() + ": prompts");
  return prompts.string(fields.string("default_prompt_name").c_str());
}

/// Tokens of a text that count.
uint32_t parse_length(const fs::path& folder, const ModelConfig& model) {
  int64_t most = std::numeric_limits<int32_t>::max();
  if (model.positions > 0) most = std::min(most, model.positions);
  const fs::path path = folder / "sentence_bert_config.json";
  if (is_there(path)) {
    const Json json = read_json(path.string());
    const ConfigFields fields(json, path.string());
    fields.expect("do_lower_case", false);
    if (fields.has("max_seq_length")) return static_cast<uint32_t>(fields.size("max_seq_length", most));
  }
  const fs::path tokenizer = folder / "tokenizer_config.json";
  if (is_there(tokenizer)) {
    const Json json = read_json(tokenizer.string());
    const ConfigFields fields(json, tokenizer.string());
    // Files that know no length hold a number of thirty digits.
    if (fields.has("model_max_length")) {
      const double length = fields.positive_or("model_max_length", 1);
      if (length < static_cast<double>(most)) most = static_cast<int64_t>(length);
    }
  }
  return static_cast<uint32_t>(most);
}

/// The list in modules.json; null where there is no such file.
Json read_modules(const fs::path& path) {
  if (!is_there(path)) return nullptr;
  Json modules = read_json(path.string());
  require(modules.is_array(), path.string(), ": expected a list of modules");
  return modules;
}

/// A module's folder; none for one that lies beside modules.json.
std::string folder_of(const ConfigFields& module) {
  const std::string name = module.string_or("path", "");
  require(name.empty() || is_plain_name(name), module.where(), ": path: expected a folder in this folder, got ",
          in_quotes(name));
  return name;
}

}  // namespace

std::vector<std::string> module_folders(const std::string& folder) {
  const fs::path path = fs::path(folder) / "modules.json";
  std::vector<std::string> folders;
  for (const Json& module : read_modules(path)) {
    const std::string name = folder_of(ConfigFields(module, path.string()));
    if (!name.empty()) folders.push_back(name);
  }
  return folders;
}

SentenceConfig read_sentence_config(const std::string& folder, const ModelConfig& model) {
  SentenceConfig config;
  config.max_length = parse_length(folder, model);
  config.prompt = parse_prompt(folder);
  const fs::path path = fs::path(folder) / "modules.json";
  const Json modules = read_modules(path);
  if (modules.is_null()) return config;
  for (size_t n = 0; n < modules.size(); ++n) {
    const ConfigFields module(modules[n], concat(path.string(), ": module ", n));
    const std::string type = module.string("type"), kind = type.substr(type.rfind('.') + 1);
    require((kind == "Transformer") == (n == 0), module.where(),
            ": type: expected Transformer first and only there, got ", type);
    if (kind == "Transformer") {
      module.expect("path", "");
    } else if (kind == "Pooling") {
      require(n == 1, module.where(), ": type: expected Pooling after Transformer");
      const std::string name = folder_of(module);
      require(!name.empty(), module.where(), ": path: expected a folder in this folder, got none");
      const fs::path file = fs::path(folder) / name / "config.json";
      const Json json = read_json(file.string());
      const ConfigFields fields(json, file.string());
      config.pooling = parse_pooling(fields, model);
      if (!config.prompt.empty()) fields.expect("include_prompt", true);
    } else if (kind == "Normalize" && n > 1) {
      config.normalize = true;
    } else {
      fail(module.where(), ": type \"", type, "\" is not supported, expected Transformer, Pooling, then Normalize");
    }
  }
  require(modules.size() >= 2, path.string(), ": expected at least Transformer and Pooling, got ", modules.size(),
          modules.size() == 1 ? " module" : " modules");
  return config;
}

}  // namespace qkv::models
