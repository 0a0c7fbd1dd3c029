// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "qkv/generate/logit_rules.h"
#include "qkv/tensor/tensor.h"

namespace qkv {

/// When a search ends, as early_stopping of Transformers says.
enum class EarlyStopping : uint8_t {
  heuristic,  ///< false: when the best running beam, at its present length, is no better than the worst finished one
  full,       ///< true: when as many beams have finished as there are
  never,      ///< "never": as heuristic, at the length that favours the running beam most
};

struct BeamOptions {
  int64_t beams = 1;
  double length_penalty = 1;  ///< a finished beam's score is its log-probability / (new tokens ^ length_penalty)
  EarlyStopping early_stopping = EarlyStopping::heuristic;
};

/// What is searched for: the continuation of one prompt with the best score.
struct BeamProblem {
  std::span<const uint32_t> prompt;  ///< of an encoder-decoder the decoder's
  int64_t most = 0;                  ///< tokens in all, more than the prompt has
  std::span<const uint32_t> end_tokens;
  const LogitRules& rules;                                          ///< applied to log-probabilities
  std::function<bool(std::span<const uint32_t> new_tokens)> stops;  ///< whether a beam ends here too; may be empty
};

/// Beam b becomes what beam from[b] was, then takes tokens[b]: gives logits [beams, vocabulary], f32.
using BeamStep = std::function<Tensor(const std::vector<int64_t>& from, std::span<const uint32_t> tokens)>;

struct BeamResult {
  std::vector<uint32_t> tokens;  ///< the new ones
  float score = 0;
};

/// The search of Transformers' generate(num_beams=...), without sampling: of the continuations of all beams the best
/// beams * max(2, 1 + end tokens) are looked at; the best `beams` of them that have not ended go on, and those of the
/// first `beams` that have ended are kept if they are among the best finished ones. Of equal scores the lower beam and
/// id comes first. Scores are f32, log-probabilities are taken in f64 and rounded. `first` holds the logits
/// [vocabulary] that follow the prompt. Throws Error for a NaN among the logits, and where the rules leave no token to
/// go on with before any beam has finished.
BeamResult beam_search(const BeamProblem& problem, const BeamOptions& options, std::span<const float> first,
                       const BeamStep& step);

}  // namespace qkv
