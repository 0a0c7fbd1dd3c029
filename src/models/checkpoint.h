// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/nn/parameters.h"
#include "qkv/tensor/tensor.h"

namespace qkv::models {

/// The tensors of a model's files under the names a family gives them. Whoever builds a model takes what it needs; at
/// the end nothing may be left but what the family passes over.
class Checkpoint {
 public:
  Checkpoint(std::map<std::string, Tensor> tensors, std::string where)
      : tensors_(std::move(tensors)), where_(std::move(where)) {}
  /// model.safetensors of the folder, or the shards of its index; mapped, not read.
  static Checkpoint read(const std::string& folder);

  /// A checkpoint that has whatever is taken from it, with random values.
  static Checkpoint random(uint64_t seed);

  const std::string& where() const { return where_; }
  /// Names that begin with `prefix` lose it; names of norms that end in gamma and beta end in weight and bias.
  void unify_names(std::string_view prefix);

  /// Of a random checkpoint: `random_has`.
  bool has(const std::string& name, bool random_has = true) const {
    return seed_ ? random_has : tensors_.count(name) != 0;
  }
  /// The tensor, which must be there, have this shape and be f32, bf16 or f16.
  TensorView take(const std::string& name, const Dims& shape);
  /// PREFIX.weight [out, in] and, with `bias`, PREFIX.bias [out].
  Linear linear(const std::string& prefix, int64_t out, int64_t in, bool bias);
  /// The same, stored as [in, out].
  Linear transposed_linear(const std::string& prefix, int64_t out, int64_t in);
  NormParameters norm(const std::string& prefix, int64_t width, bool bias);

  /// Passes over buffers whose names match: `#` stands for a number, a `*` at the end for anything.
  void pass_over(const std::vector<const char*>& patterns);
  /// The same for parameters that belong to the file but are not used: poolers, heads of tasks.
  void keep(const std::vector<const char*>& patterns);
  /// `name` and `copies` are one parameter, which files hold under any of these names: it is `name` from here on.
  /// Refuses copies that differ from each other.
  void unify_copies(const std::string& name, const std::vector<std::string>& copies);
  /// Refuses what nobody took, kept or passed over.
  void finish() const;

  /// What was taken or kept, under the names of the file but for those of norms, which are the current ones.
  std::map<std::string, TensorView> parameters() const;

 private:
  std::set<std::string> matching(const std::vector<const char*>& patterns) const;
  void invent(const std::string& name, const Dims& shape, double mean, double deviation);

  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> file_names_;  ///< of those that unify_names changed
  std::string where_;
  std::optional<uint64_t> seed_;
  std::set<std::string> parameters_, passed_over_;
};

/// Names of the files that Checkpoint::read reads, which need not exist.
std::vector<std::string> weight_files(const std::string& folder);

}  // namespace qkv::models
