// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <qkv/tensor/tensor.h>

namespace demo {

/// What one layer of a real model makes of one sentence of T tokens: demo/README.md.
struct Sentence {
  std::vector<std::string> words;               ///< [T], one a token; those that come again are numbered: her¹, her²
  int64_t layer = 0;                            ///< counted from 0
  qkv::Tensor q, k, v, d_out;                   ///< [1, H, T, D] f32
  std::map<std::string, qkv::Tensor> expected;  ///< out d_q d_k d_v [1, H, T, D] and lse [1, H, T], f32

  int64_t heads() const { return q.shape()[1]; }
  int64_t tokens() const { return q.shape()[2]; }
  int64_t width() const { return q.shape()[3]; }
  const std::string& word(int64_t token) const { return words[static_cast<size_t>(token)]; }
  /// The token that `word` names; throws qkv::Error when there is none.
  int64_t place(const std::string& word) const;
};

/// Reads the three files of `folder`. Throws qkv::Error when one is missing or they do not belong together.
Sentence read_sentence(const std::string& folder);

/// First element of a row-major f32 tensor; of what it owns, when it is to be written.
inline const float* floats(const qkv::Tensor& tensor) { return static_cast<const float*>(tensor.view().data()); }
inline float* floats(qkv::Tensor& tensor) { return static_cast<float*>(tensor.mutable_view().data()); }

}  // namespace demo
