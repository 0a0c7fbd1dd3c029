// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "qkv/support/error.h"
#include "qkv/support/random.h"
#include "tensor/text.h"

namespace qkv::models {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool matches(std::string_view name, std::string_view pattern) {
  while (!pattern.empty()) {
    if (pattern == "*") return true;
    if (name.empty()) return false;
    if (pattern.front() == '#') {
      if (!is_digit(name.front())) return false;
      while (!name.empty() && is_digit(name.front())) name.remove_prefix(1);
    } else {
      if (name.front() != pattern.front()) return false;
      name.remove_prefix(1);
    }
    pattern.remove_prefix(1);
  }
  return name.empty();
}

/// Names of norms as they have been since Transformers 1.
std::string current(const std::string& name) {
  for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, std::pair{".beta", ".bias"}}) {
    if (name.ends_with(old)) return name.substr(0, name.size() - std::strlen(old)) + now;
  }
  return name;
}

bool same_content(const TensorView& a, const TensorView& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.elements() * size_of(a.dtype()))) == 0;
}

}  // namespace

void Checkpoint::unify_names(std::string_view prefix) {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> originals;
  for (auto& [name, tensor] : tensors_) {
    const std::string now = current(name);
    const bool cut = !prefix.empty() && now.starts_with(prefix);
    const std::string plain = cut ? now.substr(prefix.size()) : now;
    const auto [place, is_new] = originals.emplace(plain, name);
    require(is_new, where_, ": tensors ", in_quotes(place->second), " and ", in_quotes(name),
            " are the same parameter");
    tensors.emplace(plain, std::move(tensor));
    file_names_[plain] = now;
  }
  tensors_ = std::move(tensors);
}

Checkpoint Checkpoint::random(uint64_t seed) {
  Checkpoint checkpoint({}, "random weights");
  checkpoint.seed_ = seed;
  return checkpoint;
}

/// Independent values, uniform around `mean`.
void Checkpoint::invent(const std::string& name, const Dims& shape, double mean, double deviation) {
  uint64_t key = *seed_;
  for (const char c : name) key = mix64(key ^ static_cast<unsigned char>(c));
  Tensor tensor(DType::f32, shape);
  auto* values = static_cast<float*>(tensor.mutable_view().data());
  const double range = std::sqrt(12.0) * deviation;
  for (int64_t n = 0; n < tensor.view().elements(); ++n) {
    const uint64_t bits = mix64(key + static_cast<uint64_t>(n));
    values[n] = static_cast<float>(mean + range * (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5));
  }
  tensors_.emplace(name, std::move(tensor));
}

TensorView Checkpoint::take(const std::string& name, const Dims& shape) {
  if (seed_ && tensors_.count(name) == 0) {
    const bool is_matrix = shape.rank() == 2;
    invent(name, shape, 0, is_matrix ? 1 / std::sqrt(static_cast<double>(shape[1])) : 0.1);
  }
  const auto place = tensors_.find(name);
  require(place != tensors_.end(), where_, ": tensor ", in_quotes(name), " is missing, expected ", shape);
  const TensorView& view = place->second.view();
  require(view.shape() == shape, where_, ": tensor ", in_quotes(name), ": expected ", shape, ", got ", view.shape());
  require(is_floating(view.dtype()) && view.dtype() != DType::f64, where_, ": tensor ", in_quotes(name),
          ": expected f32, bf16 or f16, got ", qkv::name(view.dtype()));
  parameters_.insert(name);
  return view;
}

Linear Checkpoint::linear(const std::string& prefix, int64_t out, int64_t in, bool bias) {
  Linear linear;
  linear.weight = take(prefix + ".weight", {out, in});
  if (bias) linear.bias = take(prefix + ".bias", {out});
  return linear;
}

Linear Checkpoint::transposed_linear(const std::string& prefix, int64_t out, int64_t in) {
  Linear linear;
  linear.weight = transposed(take(prefix + ".weight", {in, out}));
  linear.bias = take(prefix + ".bias", {out});
  return linear;
}

NormParameters Checkpoint::norm(const std::string& prefix, int64_t width, bool bias) {
  if (seed_ && tensors_.count(prefix + ".weight") == 0) invent(prefix + ".weight", {width}, 1, 0.1);
  NormParameters norm;
  norm.weight = take(prefix + ".weight", {width});
  if (bias) norm.bias = take(prefix + ".bias", {width});
  return norm;
}

std::set<std::string> Checkpoint::matching(const std::vector<const char*>& patterns) const {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    for (const char* pattern : patterns) {
      if (matches(name, pattern)) names.insert(name);
    }
  }
  return names;
}

void Checkpoint::pass_over(const std::vector<const char*>& patterns) { passed_over_.merge(matching(patterns)); }

void Checkpoint::keep(const std::vector<const char*>& patterns) { parameters_.merge(matching(patterns)); }

void Checkpoint::unify_copies(const std::string& name, const std::vector<std::string>& copies) {
  for (const std::string& other : copies) {
    const auto copy = tensors_.find(other);
    if (copy == tensors_.end()) continue;
    if (const auto first = tensors_.find(name); first != tensors_.end()) {
      require(same_content(first->second.view(), copy->second.view()), where_, ": tensor ", in_quotes(other),
              ": expected a copy of ", in_quotes(name), ", with which it is one parameter; got something else");
    } else {
      tensors_.emplace(name, copy->second);
      file_names_[name] = file_names_[other];
    }
    tensors_.erase(copy);
  }
}

void Checkpoint::finish() const {
  for (const auto& [name, tensor] : tensors_) {
    require(parameters_.count(name) != 0 || passed_over_.count(name) != 0, where_, ": unexpected tensor ",
            in_quotes(name), ' ', tensor.shape(), ", which is no part of this model");
  }
}

std::map<std::string, TensorView> Checkpoint::parameters() const {
  std::map<std::string, TensorView> result;
  for (const std::string& name : parameters_) {
    const auto place = file_names_.find(name);
    result.emplace(place == file_names_.end() ? name : place->second, tensors_.at(name).view());
  }
  return result;
}

}  // namespace qkv::models
