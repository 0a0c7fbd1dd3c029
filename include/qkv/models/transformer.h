// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qkv/models/config.h"
#include "qkv/tensor/tensor.h"

namespace qkv {
namespace models {
class Checkpoint;
}

struct TransformerOptions {
  DType dtype =
      DType::f32;   ///< of activations and caches: f32 or bf16, whatever the file stores; bf16 rounds weights too
  int threads = 0;  ///< of every call; 0: all CPUs this process may use
};

/// Token ids of some sequences, one sequence after the other.
struct TokenBatch {
  std::span<const uint32_t> tokens;      ///< [total]
  std::span<const int64_t> starts = {};  ///< [sequences + 1], cumulative; empty: one sequence
};

/// Of which rows logits are wanted.
enum class LogitRows : uint8_t {
  all,
  last,  ///< the last new token of every sequence; a sequence without a new token has none
};

/// What a decoder has seen of some sequences: keys and values of every layer, and for an encoder-decoder those of the
/// encoder's output. It belongs to the Transformer that made it, which must outlive it. Calls are as for KeyValueCache.
class DecoderState {
 public:
  DecoderState(DecoderState&&) noexcept;
  DecoderState& operator=(DecoderState&&) noexcept;
  ~DecoderState();

  int64_t sequences() const;
  int64_t length(int64_t sequence) const;  ///< tokens seen
  int64_t bytes() const;                   ///< of all caches; what sequences share counts once
  /// Forgets the tokens of a sequence from `length` on.
  void truncate(int64_t sequence, int64_t length);
  /// Sequence `to` forgets what it holds and begins with the first `length` tokens of `from`, whose encoder's output it
  /// shares too.
  void share_prefix(int64_t from, int64_t to, int64_t length);
  /// Sequence b becomes what sequence from[b] was; there are from.size() sequences after it.
  void reorder(const std::vector<int64_t>& from);

  struct Storage;
  Storage& storage() { return *storage_; }

 private:
  friend class Transformer;
  explicit DecoderState(std::unique_ptr<Storage> storage);
  std::unique_ptr<Storage> storage_;
};

/// A model of one of the families that ModelConfig describes, with its weights. Const calls may run at the same time,
/// each decoder state in one of them.
///
/// Same bits: a row of hidden states or logits depends on the tokens of its own sequence (before it, for decoders), on
/// the weights, the dtype and the instruction set alone; not on other sequences of the batch, on threads, or on how a
/// sequence is cut into calls of decode.
class Transformer {
 public:
  /// Reads config.json and model.safetensors, or the shards that model.safetensors.index.json lists. Throws SystemError
  /// for a missing file, and Error for a config that is not supported, for missing, misshapen or extra tensors and for
  /// shards outside the folder, naming what it is.
  static Transformer from_folder(const std::string& folder, const TransformerOptions& options = {});
  /// The same from tensors by the names that the family's files use; `name` starts the messages.
  static Transformer from_tensors(const ModelConfig& config, std::map<std::string, Tensor> tensors,
                                  const TransformerOptions& options, const std::string& name);
  /// A model with random weights, of a size that keeps hidden states near 1: for measuring, for tests.
  static Transformer random(const ModelConfig& config, uint64_t seed, const TransformerOptions& options = {});
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  const ModelConfig& config() const;
  const TransformerOptions& options() const;

  /// Hidden states [total, width] after the last layer: of an encoder, of the encoder of an encoder-decoder, or of a
  /// decoder. In f32, or bf16 with that dtype. Throws Error for an id outside the vocabulary and for a sequence longer
  /// than a learned position table.
  Tensor hidden(const TokenBatch& batch) const;
  /// Logits [total, vocabulary], f32, of an encoder (through its masked-language-model head) or of a decoder. Files of
  /// a model without its head give hidden states: then this and what follows throw Error.
  Tensor logits(const TokenBatch& batch) const;
  /// Logits [total of decoder_batch, vocabulary], f32, of an encoder-decoder; as many sequences in both batches.
  Tensor logits(const TokenBatch& batch, const TokenBatch& decoder_batch) const;

  /// Sequences that have seen nothing, of a decoder.
  DecoderState start(int64_t sequences) const;
  /// The same of an encoder-decoder: runs the encoder on `batch`, one sequence for each of the state's.
  DecoderState start(const TokenBatch& batch) const;
  /// Appends the new tokens of every sequence of the state (none is allowed) and gives logits [rows, vocabulary], f32:
  /// the bits that `logits` gives for whole sequences. When it throws, the state is as it was.
  Tensor decode(DecoderState& state, const TokenBatch& new_tokens, LogitRows rows = LogitRows::last) const;

  struct Parts;

 private:
  explicit Transformer(std::unique_ptr<const Parts> parts);
  static std::unique_ptr<const Parts> make_parts(const ModelConfig& config, models::Checkpoint checkpoint,
                                                 const TransformerOptions& options);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace qkv
