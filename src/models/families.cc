// SPDX-License-Identifier: Apache-2.0
#include "models/families.h"

#include "qkv/support/error.h"

namespace qkv::models {
namespace {

constexpr Family kFamilies[] = {
    {"bert", "bert.", parse_bert_family, bind_bert},
    {"roberta", "roberta.", parse_bert_family, bind_bert},
    {"distilbert", "distilbert.", parse_bert_family, bind_distilbert},
    {"gpt2", "transformer.", parse_gpt2, bind_gpt2},
    {"gpt_neox", "gpt_neox.", parse_gpt_neox, bind_gpt_neox},
    {"llama", "model.", parse_llama_family, bind_llama},
    {"mistral", "model.", parse_llama_family, bind_llama},
    {"qwen2", "model.", parse_llama_family, bind_llama},
    {"qwen3", "model.", parse_llama_family, bind_llama},
    {"gemma2", "model.", parse_llama_family, bind_llama},
    {"t5", "", parse_t5, bind_t5},
    {"bart", "model.", parse_bart, bind_bart},
};

}  // namespace

const Family& family_of(std::string_view model_type, const std::string& where) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  fail(where, ": model_type \"", model_type, "\" is not supported, expected one of ", known);
}

}  // namespace qkv::models
