// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace qkv {

/// A sequence of tokens, and what is added to the logit of its last one where the others stand before it.
struct SequenceBias {
  std::vector<uint32_t> tokens;  ///< at least one
  float bias = 0;
};

/// What changes logits before a token is chosen from them, whichever way: the logits processors of Transformers, by the
/// names of generation_config.json. Left alone it changes nothing.
struct LogitRules {
  std::vector<SequenceBias> sequence_bias = {};
  double repetition_penalty = 1;     ///< tokens that were there: positive logits are divided by it, others multiplied
  int64_t no_repeat_ngram_size = 0;  ///< no sequence of so many tokens comes twice; 0: off
  std::vector<std::vector<uint32_t>> bad_words = {};
  int64_t min_length = 0;                     ///< no end token before so many tokens, those of the prompt among them
  int64_t min_new_tokens = 0;                 ///< likewise, without those of the prompt
  std::optional<uint32_t> forced_first = {};  ///< the second token of a sequence (forced_bos_token_id)
  std::vector<uint32_t> forced_last = {};     ///< what the last token that may be generated is (forced_eos_token_id)
  std::vector<uint32_t> suppressed = {};
  std::vector<uint32_t> suppressed_first = {};  ///< not as the first new token (begin_suppress_tokens)
};

/// Throws Error for a token outside the vocabulary or a number outside its range, by the name it has in
/// generation_config.json.
void check_rules(const LogitRules& rules, int64_t vocabulary);

/// Where a sequence stands when its next token is chosen.
struct SequenceSoFar {
  std::span<const uint32_t> tokens;  ///< prompt and new ones; of an encoder-decoder the decoder's, start token included
  int64_t prompt = 0;                ///< how many of them are the prompt
  int64_t most = 0;                  ///< tokens it may have in the end, the prompt included
};

/// Applies the rules to one row of logits (or of log-probabilities), in the order in which Transformers applies its
/// processors. What may not come becomes -inf.
void apply_rules(const LogitRules& rules, const SequenceSoFar& sequence, std::span<const uint32_t> end_tokens,
                 std::span<float> logits);

}  // namespace qkv
