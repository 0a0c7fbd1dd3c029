// SPDX-License-Identifier: Apache-2.0
//
// Directions to differentiate a TestProblem along: tangents of its inputs, which are cotangents of its gradients too.
#pragma once

#include <deque>
#include <optional>

#include "problems.h"
#include "qkv/attention/derivatives.h"
#include "random_stream.h"

namespace qkv::test {

/// Which inputs move.
enum Moving : uint32_t {
  kMoveQ = 1u << 0,
  kMoveK = 1u << 1,
  kMoveV = 1u << 2,
  kMoveBias = 1u << 3,
  kMoveSlopes = 1u << 4,
  kMoveTable = 1u << 5,
  kMoveSinks = 1u << 6,
  kMoveScale = 1u << 7,
};
inline constexpr uint32_t kMoveAll = (1u << 8) - 1;

/// Random tensors of the shapes and dtypes of a problem's, as badly conditioned as it is. Those a problem lacks, or
/// `moving` leaves out, are absent.
class Directions {
 public:
  Directions(const TestProblem& problem, uint64_t seed, uint32_t moving = kMoveAll);
  Directions(const Directions&) = delete;
  Directions& operator=(const Directions&) = delete;

  AttentionTangents tangents;
  TensorView d_out;  ///< a direction of dO
  TensorView d_lse;  ///< a direction of dLSE, where there is one

  /// Stores NaN in the directions of every key, value and bias element that no query sees. Not for expanded layouts.
  void poison_hidden(const TestProblem& problem);

  AttentionCotangents cotangents() const {
    const AttentionTangents& t = tangents;
    return {t.q, t.k, t.v, t.bias, t.slopes, t.table, t.sinks};
  }

 private:
  TensorView make(const TensorView& like, double common, double noise);

  Stream stream_;
  Layout layout_;
  std::deque<StridedTensor> memory_;
};

/// Moves the inputs of a problem by h times a direction, in place; the destructor puts them back.
class Moved {
 public:
  Moved(TestProblem& problem, const Directions& along, double h);
  ~Moved();
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

 private:
  struct Element {
    void* address;
    double before;
  };
  void move(const TensorView& tensor, const TensorView& direction, double h);

  TestProblem& problem_;
  std::optional<double> scale_;
  std::deque<Element> elements_;
};

/// Sum of the products of elements; 0 when one of them is absent. Infinities of a hidden bias do not count.
double inner(const TensorView& a, const TensorView& b);

}  // namespace qkv::test
