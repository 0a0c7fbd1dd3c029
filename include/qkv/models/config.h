// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/nn/block.h"
#include "qkv/positions/rotary.h"

namespace qkv {

enum class ModelKind : uint8_t { encoder, decoder, encoder_decoder };
/// "encoder", "decoder", "encoder-decoder".
std::string_view name(ModelKind kind);

/// What may differ from layer to layer.
struct LayerConfig {
  std::optional<int64_t> window;  ///< a query sees itself and the window - 1 keys before it
  double scale = 1;               ///< of scores
  int rotary = -1;                ///< index into ModelConfig::rotary; -1: none
};

/// The layers of an encoder or a decoder.
struct StackConfig {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_width = 0;
  int64_t feed_forward = 0;
  std::vector<LayerConfig> layers;
};

/// A model as its config.json describes it, in one vocabulary for all families.
struct ModelConfig {
  std::string model_type;  ///< as in the file: bert, roberta, distilbert, gpt2, gpt_neox, llama, mistral, ...
  ModelKind kind = ModelKind::decoder;
  int64_t vocabulary = 0;
  int64_t width = 0;
  StackConfig encoder;  ///< of encoders and encoder-decoders
  StackConfig decoder;  ///< of decoders and encoder-decoders; the latter's layers also attend to the encoder's output

  // Input.
  int64_t positions = 0;  ///< positions a sequence may have; with `learned_positions` the table ends there
  bool learned_positions = false;
  int64_t first_position = 0;  ///< row of the position table that position 0 takes: 2 for BART, pad + 1 for RoBERTa
  bool padding_stays = false;  ///< padding tokens take the row before first_position and do not count: RoBERTa
  int64_t token_types = 0;     ///< rows of BERT's table of token types; all tokens are of type 0
  double embedding_scale = 1;  ///< sqrt(width) for Gemma-2
  bool embedding_norm = false;

  // Layers.
  BlockForm form = BlockForm::pre_norm;
  NormKind norm = NormKind::layer;  ///< layer norms have biases, RMS norms none
  bool norm_plus_one = false;       ///< weights of norms are stored less 1
  double norm_epsilon = 1e-5;
  bool query_key_norm = false;  ///< RMS norm of every head's query and key
  bool qkv_bias = false;        ///< of the projections to queries, keys and values
  bool output_bias = false;     ///< of attention's output projection
  bool feed_forward_bias = false;
  bool gated = false;  ///< down(activation(gate(x)) * up(x)); else down(activation(up(x)))
  Activation activation = Activation::gelu;
  double score_softcap = 0;           ///< 0: none
  std::vector<RotaryOptions> rotary;  ///< those that layers name
  int64_t relative_buckets = 0;       ///< T5's table of relative positions, one for each stack; 0: none
  int64_t relative_distance = 128;

  // Output.
  bool final_norm = true;  ///< after the last layer of a stack
  bool mask_head = false;  ///< logits = norm(activation(dense(x))) embedding^T + bias: BERT's family
  Activation head_activation = Activation::gelu;
  bool head_bias = false;
  bool tied_head = true;     ///< the head is the token embedding
  double head_scale = 1;     ///< of x before the head: width^-0.5 for the first T5
  double logit_softcap = 0;  ///< 0: none

  int64_t pad_token = -1;  ///< -1: none

  const StackConfig& main_stack() const { return kind == ModelKind::encoder ? encoder : decoder; }
  bool has_decoder() const { return kind != ModelKind::encoder; }
  bool has_encoder() const { return kind != ModelKind::decoder; }
};

/// Reads a config.json. Throws SystemError when it cannot be read, and Error that names the key for a model_type,
/// activation, rope_type or other value that is not supported, for missing or absurd sizes, and for sizes that do not
/// go together. Keys that change no result are passed over.
ModelConfig read_model_config(const std::string& path);
/// The same from the content of a file; `name` starts the messages.
ModelConfig parse_model_config(std::string_view json, const std::string& name);

}  // namespace qkv
