// SPDX-License-Identifier: Apache-2.0
#include "sentence.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include <qkv/support/error.h>
#include <qkv/tensor/safetensors.h>

namespace demo {
namespace {

/// Numbers the words that occur more than once, so that a table can name each of them.
std::vector<std::string> told_apart(const std::vector<std::string>& words) {
  static constexpr std::array<const char*, 9> kMarks = {"¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::vector<std::string> marked = words;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto here = words.begin() + static_cast<std::ptrdiff_t>(i);
    const auto before = static_cast<size_t>(std::count(words.begin(), here, *here));
    if (std::count(words.begin(), words.end(), *here) > 1 && before < kMarks.size()) marked[i] += kMarks[before];
  }
  return marked;
}

qkv::Tensor take(const std::string& path, std::map<std::string, qkv::Tensor>& tensors, const std::string& name,
                 const qkv::Dims& shape) {
  const auto found = tensors.find(name);
  qkv::require(found != tensors.end(), path, ": no tensor ", name);
  const qkv::Tensor tensor = found->second;
  qkv::require(tensor.dtype() == qkv::DType::f32 && tensor.shape() == shape, path, ": ", name, " must be f32 ",
               to_string(shape), ", it is ", qkv::name(tensor.dtype()), " ", to_string(tensor.shape()));
  return tensor;
}

void read_words(const std::string& path, Sentence& sentence) {
  std::ifstream file(path);
  qkv::require(file.is_open(), path, ": cannot be opened");
  try {
    const nlohmann::json about = nlohmann::json::parse(file);
    sentence.words = told_apart(about.at("words").get<std::vector<std::string>>());
    sentence.layer = about.at("layer").get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    qkv::fail(path, ": ", error.what());
  }
}

}  // namespace

int64_t Sentence::place(const std::string& word) const {
  const auto found = std::find(words.begin(), words.end(), word);
  qkv::require(found != words.end(), "the sentence has no word ", word);
  return found - words.begin();
}

Sentence read_sentence(const std::string& folder) {
  Sentence sentence;
  read_words(folder + "/tokens.json", sentence);

  const std::string problem_path = folder + "/sentence.safetensors";
  auto problem = qkv::read_safetensors(problem_path).tensors;
  const qkv::Dims shape = {1, 12, static_cast<int64_t>(sentence.words.size()), 32};
  sentence.q = take(problem_path, problem, "q", shape);
  sentence.k = take(problem_path, problem, "k", shape);
  sentence.v = take(problem_path, problem, "v", shape);
  sentence.d_out = take(problem_path, problem, "d_out", shape);

  const std::string expected_path = folder + "/expected.safetensors";
  auto expected = qkv::read_safetensors(expected_path).tensors;
  for (const char* name : {"out", "d_q", "d_k", "d_v"}) {
    sentence.expected[name] = take(expected_path, expected, name, shape);
  }
  sentence.expected["lse"] = take(expected_path, expected, "lse", {shape[0], shape[1], shape[2]});
  return sentence;
}

}  // namespace demo
