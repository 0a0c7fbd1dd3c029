// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/models/config.h"

namespace qkv::models {

/// How the hidden states of a text's tokens become one row.
enum class Pooling : uint8_t { first, largest, mean, mean_sqrt, weighted_mean, last };

struct SentenceConfig {
  std::vector<Pooling> pooling{Pooling::mean};  ///< results stand side by side
  bool normalize = false;
  uint32_t max_length = 0;  ///< tokens
  std::string prompt;       ///< before every text
};

/// The folders that modules.json names for its modules, which lie in this one; none without that file.
std::vector<std::string> module_folders(const std::string& folder);

/// Reads the sentence-transformers files of a folder.
SentenceConfig read_sentence_config(const std::string& folder, const ModelConfig& model);

}  // namespace qkv::models
