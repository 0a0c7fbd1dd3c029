// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/generate/beam_search.h"
#include "qkv/generate/logit_rules.h"
#include "qkv/models/config.h"

namespace qkv {

/// What a model's folder says about generation. Values of generation_config.json that change which tokens come are
/// here, or are refused; do_sample, temperature, top_k and top_p are left to the caller, and so are lengths.
struct GenerationConfig {
  std::vector<uint32_t> end_tokens;             ///< eos_token_id
  std::optional<uint32_t> begin_token;          ///< bos_token_id: what stands for an empty prompt
  std::optional<uint32_t> decoder_start_token;  ///< of encoder-decoders; bos_token_id where it is missing
  LogitRules rules;
  BeamOptions beams;               ///< num_beams, length_penalty, early_stopping
  std::optional<double> min_p;     ///< counts when sampling
  std::vector<std::string> stops;  ///< stop_strings
  std::string name;                ///< the file, for messages
  /// Values that matter only when sampling, or only with beams, and that are not supported: "typical_p 0.9".
  std::vector<std::string> unsupported_sampling, unsupported_beams;
};

/// Reads generation_config.json, or, where there is none, the same keys of config.json. Throws SystemError when a file
/// cannot be read, and Error that names the key for a value that would change the result and is not supported, for a
/// key that is not known, for values of another kind and for tokens outside the model's vocabulary.
GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model);
/// The same from the content of a generation_config.json; `name` starts the messages.
GenerationConfig parse_generation_config(std::string_view json, const std::string& name, const ModelConfig& model);

}  // namespace qkv
