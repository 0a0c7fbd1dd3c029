// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include "models/families.h"

namespace qkv::models {

ModelWeights bind_weights(Checkpoint& checkpoint, const ModelConfig& config) {
  const Family& family = family_of(config.model_type, checkpoint.where());
  checkpoint.unify_names(family.prefix);
  ModelWeights weights = family.bind(checkpoint, config);
  checkpoint.finish();
  return weights;
}

void bind_head(Checkpoint& checkpoint, const ModelConfig& config, const std::string& embedding_name,
               ModelWeights& weights) {
  const std::string name = "lm_head.weight";
  const Dims shape{config.vocabulary, config.width};
  if (config.tied_head) checkpoint.unify_copies(embedding_name, {name});
  weights.embedding = checkpoint.take(embedding_name, shape);
  weights.has_head = config.tied_head || checkpoint.has(name);
  if (weights.has_head) weights.head.weight = config.tied_head ? weights.embedding : checkpoint.take(name, shape);
}

}  // namespace qkv::models
