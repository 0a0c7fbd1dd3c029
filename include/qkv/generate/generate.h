// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "qkv/generate/beam_search.h"
#include "qkv/generate/logit_rules.h"
#include "qkv/generate/sampling.h"
#include "qkv/generate/token_sequences.h"

namespace qkv {

struct GenerateOptions {
  int64_t max_tokens = 0;  ///< new ones, fewer where a table of learned positions ends
  SamplingOptions sampling = {};
  LogitRules rules = {};
  std::vector<uint32_t> end_tokens = {};
  BeamOptions beams = {};                            ///< more than one: beam search, without sampling and draft
  std::optional<uint32_t> decoder_start_token = {};  ///< of encoder-decoders
  int64_t draft_tokens = 4;                          ///< that a draft proposes at a time

  /// Called for every new token, in order within a sequence; false: the sequence stops with it. Not called with beams.
  std::function<bool(int64_t sequence, uint32_t token)> on_token = {};
  /// With beams: whether a beam with these new tokens stops. It is asked for every beam at every step.
  std::function<bool(std::span<const uint32_t> new_tokens)> stops = {};
  /// Called while prompts are read: tokens read so far, and all of them.
  std::function<void(int64_t done, int64_t total)> on_prompt = {};
};

enum class Finish : uint8_t { length, end, stop };
/// "length", "end", "stop".
std::string_view name(Finish finish);

struct Generation {
  std::vector<uint32_t> tokens;  ///< the new ones, a final end token included
  Finish finish = Finish::length;
};

/// Continues prompts, as one batch; with beams one after the other. For an encoder-decoder prompts are the encoder's
/// input. Result n is that of prompts[n] alone, bit by bit: draws depend on the seed, the step, and how many equal
/// prompts stand before this one. Prompts that begin alike are read once as far as they do.
///
/// With a draft, a smaller model of the same vocabulary and kind, several tokens are verified at a time. The tokens are
/// those without it, whichever way they are chosen.
///
/// Throws Error for an empty prompt, for tokens outside the vocabulary, for a prompt longer than a table of learned
/// positions, for options outside their ranges or that exclude each other, and for logits that are not numbers.
std::vector<Generation> generate(const Transformer& model, const std::vector<std::vector<uint32_t>>& prompts,
                                 const GenerateOptions& options, const Transformer* draft = nullptr);

// The same on sequences that have seen nothing; of an encoder-decoder with prompts of its decoder.

/// `sequences` has as many sequences as there are prompts, `draft` too, if there is one; both hold fewer in the end.
/// Prompt n takes the draws of sequence draws[n].
std::vector<Generation> continue_prompts(TokenSequences& sequences, TokenSequences* draft,
                                         const std::vector<std::vector<uint32_t>>& prompts,
                                         const std::vector<uint64_t>& draws, const GenerateOptions& options);
/// Beam search from one prompt, on one sequence.
Generation continue_with_beams(TokenSequences& sequences, const std::vector<uint32_t>& prompt,
                               const GenerateOptions& options);

}  // namespace qkv
