// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "qkv/models/config.h"

namespace qkv::test {

/// Small configs, one or two of each family, that use what is special in it.
struct TinyModel {
  const char* name;
  const char* json;
  ModelConfig config() const { return parse_model_config(json, name); }
};
const std::vector<TinyModel>& tiny_models();
const TinyModel& tiny_model(const std::string& name);

inline std::string name_of(const TinyModel& model) { return model.name; }

}  // namespace qkv::test
