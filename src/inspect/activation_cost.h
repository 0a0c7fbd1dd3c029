// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "qkv/inspect/cost.h"

namespace qkv::inspect {

/// Bytes that a training step keeps from forward to backward: the states of the stacks (stack.h says what they hold),
/// the rows they read and give, and the logits.
int64_t training_activations(const ModelConfig& config, const CostQuery& query);

/// Bytes of the arrays that live at one time in the forward of n new tokens: the rows, and what attention or
/// feed-forward of one layer holds beside them, or else the logits.
int64_t inference_activations(const ModelConfig& config, const CostQuery& query, int64_t n);

}  // namespace qkv::inspect
