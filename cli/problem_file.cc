// SPDX-License-Identifier: Apache-2.0
#include "cli/problem_file.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "qkv/support/error.h"
#include "qkv/tensor/npy.h"
#include "qkv/tensor/safetensors.h"

namespace qkv::cli {
namespace {

constexpr TensorName kProblem[] = {
    {"q", Follows::q, "queries [B, H, Tq, D]"},
    {"k", Follows::q, "keys [B, Hkv, Tk, D]"},
    {"v", Follows::q, "values [B, Hkv, Tk, Dv]"},
    {"bias", Follows::q_if_equal, "added to the scores, -inf hides [B|1, H|1, Tq|1, Tk|1]"},
    {"mask", Follows::nothing, "bool or u8, nonzero is visible [B|1, H|1, Tq|1, Tk|1]"},
    {"slopes", Follows::compute_type, "ALiBi slopes [H]"},
    {"sinks", Follows::compute_type, "logits that join the denominator [H]"},
    {"table", Follows::compute_type, "relative positions [H, buckets], with --buckets"},
    {"key_lengths", Follows::nothing, "keys in use [B]"},
    {"query_lengths", Follows::nothing, "queries in use [B]"},
    {"offsets", Follows::nothing, "key position of query 0 [B]"},
    {"query_segment", Follows::nothing, "document of each query [B, Tq]"},
    {"key_segment", Follows::nothing, "document of each key [B, Tk]"},
    {"block_mask", Follows::nothing, "visible blocks, with --block"},
    {"query_starts", Follows::nothing, "packed sequences: where each begins [S + 1]"},
    {"key_starts", Follows::nothing, "the same for keys [S + 1]"},
};

constexpr TensorName kUpstream[] = {
    {"d_out", Follows::q, "gradient of out [B, H, Tq, Dv]"},
    {"d_lse", Follows::compute_type, "gradient of lse [B, H, Tq]"},
};

constexpr TensorName kTangents[] = {
    {"t_q", Follows::q, "tangent of q"},
    {"t_k", Follows::q, "tangent of k"},
    {"t_v", Follows::q, "tangent of v"},
    {"t_bias", Follows::q_if_equal, "tangent of bias"},
    {"t_slopes", Follows::compute_type, "tangent of slopes"},
    {"t_table", Follows::compute_type, "tangent of table"},
    {"t_sinks", Follows::compute_type, "tangent of sinks"},
    {"t_scale", Follows::compute_type, "tangent of the scale [1]"},
};

constexpr TensorName kCotangents[] = {
    {"d_out", Follows::q, "gradient of out [B, H, Tq, Dv]"},
    {"c_q", Follows::q, "cotangent of d_q"},
    {"c_k", Follows::q, "cotangent of d_k"},
    {"c_v", Follows::q, "cotangent of d_v"},
    {"c_bias", Follows::q_if_equal, "cotangent of d_bias"},
};

constexpr Reads kEveryKind[] = {Reads::upstream, Reads::tangents, Reads::cotangents};

bool holds(std::span<const TensorName> names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const TensorName& known) { return name == known.name; });
}

/// Every name a file may hold, each once.
std::vector<TensorName> known_tensors() {
  std::vector<TensorName> all(std::begin(kProblem), std::end(kProblem));
  for (const Reads reads : kEveryKind) {
    for (const TensorName& tensor : further_tensors(reads)) {
      if (!holds(all, tensor.name)) all.push_back(tensor);
    }
  }
  return all;
}

std::optional<TensorName> find(const std::string& name) {
  for (const TensorName& known : known_tensors()) {
    if (name == known.name) return known;
  }
  return std::nullopt;
}

std::string known_names() {
  std::ostringstream text;
  for (const TensorName& known : known_tensors()) text << (text.tellp() > 0 ? " " : "") << known.name;
  return text.str();
}

/// The shape without its last `drop` axes.
Dims leading(const Dims& shape, int drop) {
  Dims result;
  for (int axis = 0; axis + drop < shape.rank(); ++axis) result.push_back(shape[axis]);
  return result;
}

Dims with_axis(Dims shape, int64_t size) {
  shape.push_back(size);
  return shape;
}

DType compute_type_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

std::span<const TensorName> problem_tensors() { return kProblem; }

std::span<const TensorName> further_tensors(Reads reads) {
  switch (reads) {
    case Reads::upstream: return kUpstream;
    case Reads::tangents: return kTangents;
    case Reads::cotangents: return kCotangents;
    default: return {};
  }
}

ProblemFile::ProblemFile(const ProblemSource& source, std::optional<DType> dtype, Reads reads) {
  read(source, reads);
  for (const char* name : {"q", "k", "v", "d_out"}) {
    if (std::string(name) == "d_out" && !holds(further_tensors(reads), name)) continue;
    const std::string where = source.file.empty() ? concat("--", name) : source.file;
    require(has(name), where, ": expected a tensor named ", name, ", found none");
  }
  for (const char* name : {"q", "k", "v"}) {
    const TensorView view = (*this)[name];
    require(is_floating(view.dtype()), name, ": expected f64, f32, bf16 or f16, got ", qkv::name(view.dtype()));
    require(view.rank() >= 2 && view.rank() <= 4, name, ": expected 2, 3 or 4 axes, got ", to_string(view.shape()));
    require(view.rank() == (*this)["q"].rank(), name, ": expected as many axes as q ", to_string((*this)["q"].shape()),
            ", got ", to_string(view.shape()));
  }
  require(!packed() || (*this)["q"].rank() == 3, "q: expected [total_q, H, D] with query_starts, got ",
          to_string((*this)["q"].shape()));
  if (dtype) convert(*dtype);
}

void ProblemFile::read(const ProblemSource& source, Reads reads) {
  if (!source.file.empty()) {
    require(!source.file.ends_with(".npy"), source.file,
            ": expected one .safetensors file; give .npy files as --q, --k, ...");
    TensorFile file = read_safetensors(source.file);
    for (auto& [name, tensor] : file.tensors) {
      require(find(name).has_value(), source.file, ": unknown tensor '", name, "', expected some of ", known_names());
      // One file serves all verbs: what another one reads is let be.
      const bool wanted = holds(problem_tensors(), name) || holds(further_tensors(reads), name);
      if (wanted) tensors_[name] = std::move(tensor);
    }
    paths_.push_back(source.file);
  }
  for (const auto& [name, path] : source.flags) {
    require(!has(name), "--", name, ": the tensor ", name, " is in ", source.file, " already");
    tensors_[name] = read_npy(path);
    paths_.push_back(path);
  }
}

void ProblemFile::convert(DType dtype) {
  const DType before = (*this)["q"].dtype();
  for (auto& [name, tensor] : tensors_) {
    DType after = tensor.dtype();
    switch (find(name)->follows) {
      case Follows::q: after = dtype; break;
      case Follows::q_if_equal: after = after == before ? dtype : after; break;
      case Follows::compute_type: after = compute_type_of(dtype); break;
      case Follows::nothing: break;
    }
    // An integer where a number belongs is the library's to refuse, not ours to convert.
    if (after != tensor.dtype() && is_floating(tensor.dtype())) tensor = converted(tensor.view(), after);
  }
}

TensorView ProblemFile::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? TensorView() : found->second.view();
}

DType ProblemFile::compute_type() const { return compute_type_of((*this)["q"].dtype()); }

Dims ProblemFile::row_shape() const { return leading((*this)["q"].shape(), 1); }

Dims ProblemFile::out_shape() const {
  const TensorView v = (*this)["v"];
  return with_axis(row_shape(), v.size(v.rank() - 1));
}

Dims ProblemFile::key_shape() const {
  const TensorView q = (*this)["q"];
  const TensorView k = (*this)["k"];
  if (packed()) return {k.size(0), q.size(1)};
  return with_axis(leading(q.shape(), 2), k.size(k.rank() - 2));
}

Dims ProblemFile::weights_shape() const {
  const TensorView k = (*this)["k"];
  return with_axis(row_shape(), k.size(k.rank() - 2));
}

}  // namespace qkv::cli
