// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "qkv/models/config.h"
#include "qkv/nn/parameters.h"

namespace qkv::models {

/// What turns token ids into the rows that a stack reads, beside the token embedding.
struct InputWeights {
  TensorView positions;    ///< [first_position + positions, width]
  TensorView token_types;  ///< [token_types, width]
  NormParameters norm;
};

/// The parameters of a model: views of a checkpoint, or of `owned`.
struct ModelWeights {
  TensorView embedding;  ///< [vocabulary, width]
  InputWeights encoder_input, decoder_input;
  Stack encoder, decoder;
  bool has_head = true;  ///< false: files of a model without its head give hidden states alone
  Linear head_dense;     ///< [width, width], of mask heads
  NormParameters head_norm;
  Linear head;                      ///< [vocabulary, width]
  std::vector<Tensor> owned;        ///< kept as long as the model
  std::vector<Tensor> fused_parts;  ///< until weights are packed
};

/// Takes the parameters of a family from a checkpoint, whatever the file's names for them; refuses what is missing,
/// misshapen or no part of the model.
ModelWeights bind_weights(Checkpoint& checkpoint, const ModelConfig& config);

// The families' parts of it.
ModelWeights bind_bert(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_distilbert(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_gpt2(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_gpt_neox(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_llama(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_t5(Checkpoint& checkpoint, const ModelConfig& config);
ModelWeights bind_bart(Checkpoint& checkpoint, const ModelConfig& config);

/// The embedding under `embedding_name`, and the head of a decoder: that embedding where the config ties them, else
/// lm_head.weight, if it is there.
void bind_head(Checkpoint& checkpoint, const ModelConfig& config, const std::string& embedding_name,
               ModelWeights& weights);

}  // namespace qkv::models
