// SPDX-License-Identifier: Apache-2.0
//
// BERT, RoBERTa and DistilBERT. Files of a fine-tuned model may lack the masked-language-model head and carry heads of
// their task instead, which are kept.
#include "models/weights.h"

namespace qkv::models {
namespace {

struct HeadNames {
  const char *dense, *norm, *decoder, *bias;
};
constexpr HeadNames kBertHead{"cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                              "cls.predictions.decoder", "cls.predictions.bias"};
constexpr HeadNames kRobertaHead{"lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"};
constexpr HeadNames kDistilBertHead{"vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"};

constexpr const char* kEmbedding = "embeddings.word_embeddings.weight";

void bind_mask_head(Checkpoint& checkpoint, const ModelConfig& config, const HeadNames& names, ModelWeights& weights) {
  const std::string decoder = names.decoder;
  if (config.tied_head) checkpoint.unify_copies(kEmbedding, {decoder + ".weight"});
  // Where nothing is tied the decoder may have a bias of its own, beside one that is not used.
  const bool own_bias = !config.tied_head && checkpoint.has(decoder + ".bias", false);
  const std::string bias = own_bias ? decoder + ".bias" : names.bias;
  if (own_bias) {
    checkpoint.keep({names.bias});
  } else if (bias != decoder + ".bias") {
    checkpoint.unify_copies(bias, {decoder + ".bias"});
  }
  weights.embedding = checkpoint.take(kEmbedding, {config.vocabulary, config.width});
  weights.has_head = checkpoint.has(std::string(names.dense) + ".weight");
  if (!weights.has_head) return checkpoint.keep({names.bias});
  weights.head_dense = checkpoint.linear(names.dense, config.width, config.width, true);
  weights.head_norm = checkpoint.norm(names.norm, config.width, true);
  weights.head.weight =
      config.tied_head ? weights.embedding : checkpoint.take(decoder + ".weight", {config.vocabulary, config.width});
  weights.head.bias = checkpoint.take(bias, {config.vocabulary});
}

void bind_input(Checkpoint& checkpoint, const ModelConfig& config, InputWeights& input) {
  input.positions = checkpoint.take("embeddings.position_embeddings.weight",
                                    {config.first_position + config.positions, config.width});
  if (config.token_types > 0) {
    input.token_types = checkpoint.take("embeddings.token_type_embeddings.weight", {config.token_types, config.width});
  }
  input.norm = checkpoint.norm("embeddings.LayerNorm", config.width, true);
}

}  // namespace

ModelWeights bind_bert(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  const int64_t width = config.width, hidden = config.encoder.feed_forward;
  bind_mask_head(checkpoint, config, config.model_type == "roberta" ? kRobertaHead : kBertHead, weights);
  bind_input(checkpoint, config, weights.encoder_input);
  for (size_t n = 0; n < config.encoder.layers.size(); ++n) {
    const std::string layer = "encoder.layer." + std::to_string(n) + ".";
    Block& block = weights.encoder.blocks.emplace_back();
    block.attention.q = checkpoint.linear(layer + "attention.self.query", width, width, true);
    block.attention.k = checkpoint.linear(layer + "attention.self.key", width, width, true);
    block.attention.v = checkpoint.linear(layer + "attention.self.value", width, width, true);
    block.attention.out = checkpoint.linear(layer + "attention.output.dense", width, width, true);
    block.attention_norm = checkpoint.norm(layer + "attention.output.LayerNorm", width, true);
    block.feed_forward.up = checkpoint.linear(layer + "intermediate.dense", hidden, width, true);
    block.feed_forward.down = checkpoint.linear(layer + "output.dense", width, hidden, true);
    block.feed_forward_norm = checkpoint.norm(layer + "output.LayerNorm", width, true);
  }
  checkpoint.pass_over({"embeddings.position_ids", "embeddings.token_type_ids"});
  checkpoint.keep({"pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight",
                   "cls.seq_relationship.bias", "classifier.*", "qa_outputs.*"});
  return weights;
}

ModelWeights bind_distilbert(Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  const int64_t width = config.width, hidden = config.encoder.feed_forward;
  bind_mask_head(checkpoint, config, kDistilBertHead, weights);
  bind_input(checkpoint, config, weights.encoder_input);
  for (size_t n = 0; n < config.encoder.layers.size(); ++n) {
    const std::string layer = "transformer.layer." + std::to_string(n) + ".";
    Block& block = weights.encoder.blocks.emplace_back();
    block.attention.q = checkpoint.linear(layer + "attention.q_lin", width, width, true);
    block.attention.k = checkpoint.linear(layer + "attention.k_lin", width, width, true);
    block.attention.v = checkpoint.linear(layer + "attention.v_lin", width, width, true);
    block.attention.out = checkpoint.linear(layer + "attention.out_lin", width, width, true);
    block.attention_norm = checkpoint.norm(layer + "sa_layer_norm", width, true);
    block.feed_forward.up = checkpoint.linear(layer + "ffn.lin1", hidden, width, true);
    block.feed_forward.down = checkpoint.linear(layer + "ffn.lin2", width, hidden, true);
    block.feed_forward_norm = checkpoint.norm(layer + "output_layer_norm", width, true);
  }
  checkpoint.pass_over({"embeddings.position_ids"});
  checkpoint.keep({"pre_classifier.*", "classifier.*", "qa_outputs.*"});
  return weights;
}

}  // namespace qkv::models
