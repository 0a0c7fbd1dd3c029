// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "qkv/generate/generate.h"
#include "qkv/generate/generation_config.h"
#include "qkv/text/tokenizer.h"

namespace qkv {

/// What a caller asks of a model's folder; what is absent is the folder's.
struct GenerateRequest {
  int64_t max_tokens = 0;
  SamplingOptions sampling = {};  ///< but min_p
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<int64_t> beams = {};
  bool has_draft = false;
};

/// A request with what the folder says about the rest; the folder's min_p counts with a temperature. Throws Error that
/// names the file where the folder's num_beams meet a temperature or a draft, and for a value of the folder that is not
/// supported with the temperature or beams.
GenerateOptions options_of(const GenerateRequest& request, const GenerationConfig& config);

/// The tokens of a prompt; of one without tokens that which the folder says a text begins with. Throws Error that
/// starts with `where` for a text that is not valid UTF-8, and for one without tokens where the folder names none.
std::vector<uint32_t> prompt_tokens(const std::string& text, const Tokenizer& tokenizer, const GenerationConfig& config,
                                    const std::string& where);

}  // namespace qkv
