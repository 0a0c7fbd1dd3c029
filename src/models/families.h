// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "models/config_fields.h"
#include "models/weights.h"

namespace qkv::models {

/// What a model_type stands for.
struct Family {
  const char* model_type;
  const char* prefix;  ///< that its files may put before the names of everything but the head
  void (*parse)(const ConfigFields& fields, ModelConfig& config);
  ModelWeights (*bind)(Checkpoint& checkpoint, const ModelConfig& config);
};

/// Throws Error that starts with `where` and names those that are supported.
const Family& family_of(std::string_view model_type, const std::string& where);

}  // namespace qkv::models
