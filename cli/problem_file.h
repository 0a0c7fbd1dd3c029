// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "qkv/attention.h"

namespace qkv::cli {

/// How the dtype of a tensor follows that of q, which is what --dtype changes.
enum class Follows : uint8_t {
  q,             ///< the same
  q_if_equal,    ///< the same if it was the same; a bias may also stay f32
  compute_type,  ///< f32, or f64 for f64
  nothing,       ///< integers and booleans
};

/// A name a problem may hold.
struct TensorName {
  const char* name;
  Follows follows;
  const char* help;
};
/// What every verb reads.
std::span<const TensorName> problem_tensors();

/// What a verb reads besides.
enum class Reads : uint8_t {
  nothing_else,
  upstream,    ///< d_out and d_lse
  tangents,    ///< t_q and its like
  cotangents,  ///< d_out, c_q and its like
};
std::span<const TensorName> further_tensors(Reads reads);

/// Where the tensors of a problem come from.
struct ProblemSource {
  std::string file;                          ///< a .safetensors file; may be empty
  std::map<std::string, std::string> flags;  ///< tensor name -> .npy file, besides or instead
};

/// The tensors of one problem, as views of mapped files where nothing had to be converted.
class ProblemFile {
 public:
  /// Reads, refuses unknown names and names given twice, converts to `dtype`, and checks that q, k and v are there with
  /// 2 to 4 axes, and d_out where it is read. Everything else is the library's to check.
  ProblemFile(const ProblemSource& source, std::optional<DType> dtype, Reads reads);

  /// Absent when the problem has no such tensor.
  TensorView operator[](const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Files that were read, none of which may be written.
  const std::vector<std::string>& paths() const { return paths_; }
  bool packed() const { return has("query_starts"); }

  /// f32, or f64 for f64.
  DType compute_type() const;
  Dims out_shape() const;      ///< [B, H, Tq, Dv], in q's rank
  Dims row_shape() const;      ///< [B, H, Tq]; [total_q, H] when packed
  Dims key_shape() const;      ///< [B, H, Tk]; [total_k, H] when packed
  Dims weights_shape() const;  ///< [B, H, Tq, Tk]; not when packed

 private:
  void read(const ProblemSource& source, Reads reads);
  void convert(DType dtype);
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> paths_;
};

}  // namespace qkv::cli
