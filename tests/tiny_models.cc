// SPDX-License-Identifier: Apache-2.0
#include "tiny_models.h"

#include "qkv/support/error.h"

namespace qkv::test {

const std::vector<TinyModel>& tiny_models() {
  static const std::vector<TinyModel> models{
      {"bert", R"({"model_type": "bert", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 40})"},
      {"roberta", R"({"model_type": "roberta", "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 40, "type_vocab_size": 1,
        "pad_token_id": 1})"},
      {"distilbert", R"({"model_type": "distilbert", "vocab_size": 61, "dim": 24, "n_layers": 2, "n_heads": 3,
        "hidden_dim": 40, "max_position_embeddings": 40, "tie_word_embeddings": false})"},
      {"gpt2", R"({"model_type": "gpt2", "vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3,
        "n_positions": 300, "scale_attn_by_inverse_layer_idx": true})"},
      {"gpt_neox", R"({"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 64, "rotary_pct": 0.25})"},
      {"gpt_neox_serial", R"({"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 3, "intermediate_size": 64, "rotary_pct": 1.0, "use_parallel_residual": false})"},
      {"llama", R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}})"},
      {"mistral", R"({"model_type": "mistral", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "sliding_window": 7})"},
      {"qwen2", R"({"model_type": "qwen2", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 48, "use_sliding_window": true,
        "sliding_window": 5, "max_window_layers": 1, "tie_word_embeddings": true})"},
      {"qwen3", R"({"model_type": "qwen3", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48})"},
      {"gemma2", R"({"model_type": "gemma2", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 48,
        "sliding_window": 6, "query_pre_attn_scalar": 10, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0})"},
      {"t5", R"({"model_type": "t5", "vocab_size": 61, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2,
        "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20})"},
      {"t5_gated", R"({"model_type": "t5", "vocab_size": 61, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_layers": 2,
        "num_heads": 3, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false})"},
      {"bart", R"({"model_type": "bart", "vocab_size": 61, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32,
        "max_position_embeddings": 300, "scale_embedding": true})"},
  };
  return models;
}

const TinyModel& tiny_model(const std::string& name) {
  for (const TinyModel& model : tiny_models()) {
    if (name == model.name) return model;
  }
  fail("no tiny model ", name);
}

}  // namespace qkv::test
