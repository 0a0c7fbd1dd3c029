// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include "qkv/support/error.h"

namespace qkv::models {
namespace {

struct Family {
  const char* model_type;
  const char* prefix;
  ModelWeights (*bind)(Checkpoint& checkpoint, const ModelConfig& config);
};

constexpr Family kFamilies[] = {
    {"bert", "bert.", bind_bert},
    {"roberta", "roberta.", bind_bert},
    {"distilbert", "distilbert.", bind_distilbert},
    {"gpt2", "transformer.", bind_gpt2},
    {"gpt_neox", "gpt_neox.", bind_gpt_neox},
    {"llama", "model.", bind_llama},
    {"mistral", "model.", bind_llama},
    {"qwen2", "model.", bind_llama},
    {"qwen3", "model.", bind_llama},
    {"gemma2", "model.", bind_llama},
    {"t5", "", bind_t5},
    {"bart", "model.", bind_bart},
};

const Family& family_of(const std::string& model_type) {
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family;
  }
  fail("models: no weights are known for model_type ", model_type);
}

}  // namespace

const char* name_prefix(const std::string& model_type) { return family_of(model_type).prefix; }

ModelWeights bind_weights(Checkpoint& checkpoint, const ModelConfig& config) {
  const Family& family = family_of(config.model_type);
  checkpoint.unify_names(family.prefix);
  ModelWeights weights = family.bind(checkpoint, config);
  checkpoint.finish();
  return weights;
}

Linear bind_head(Checkpoint& checkpoint, const ModelConfig& config, const std::string& name,
                 const std::string& embedding_name) {
  Linear head;
  if (config.tied_head) {
    checkpoint.unify_copies(embedding_name, {name});
    head.weight = checkpoint.take(embedding_name, {config.vocabulary, config.width});
  } else {
    head.weight = checkpoint.take(name, {config.vocabulary, config.width});
  }
  return head;
}

}  // namespace qkv::models
