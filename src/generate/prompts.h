// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "qkv/generate/token_sequences.h"

namespace qkv {

/// Tokens that a sequence may come to: as many new ones as are wanted, or what the model has room for.
int64_t most_tokens(int64_t prompt, int64_t new_tokens, const TokenSequences& sequences);

/// Feeds prompts to sequences that have seen nothing, all but what the first step of generation takes: nothing where
/// all prompts together are short, else all but the last token of each. What a prompt has in common with an earlier one
/// is shared, not computed again. Prompts for which `wanted` is false are left out.
void read_prompts(TokenSequences& sequences, const std::vector<std::vector<uint32_t>>& prompts,
                  const std::vector<bool>& wanted, const std::function<void(int64_t done, int64_t total)>& on_prompt);

}  // namespace qkv
