// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/inspect/cost.h"

namespace qkv::inspect {

/// Bytes that a training step keeps from forward to backward: the states of the stacks (stack.h says what they hold),
/// the rows they read and give, and the logits.
int64_t training_activations(const ModelConfig& config, const CostQuery& query);

struct InferencePass {
  int64_t tokens = 0;
  bool runs_encoder = false;  ///< before them, of an encoder-decoder
};

/// Bytes of the arrays that live at one time in the forward of new tokens: the rows, what attention or feed-forward of
/// one layer holds beside them, tables of rotary positions; or else the logits of every token.
int64_t inference_activations(const ModelConfig& config, const CostQuery& query, const InferencePass& pass);

}  // namespace qkv::inspect
