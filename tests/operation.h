// SPDX-License-Identifier: Apache-2.0
//
// The operation under test, run on a TestProblem: forward with state, lse, backward with every gradient the problem
// has.
#pragma once

#include <memory>

#include "problems.h"
#include "qkv/attention/reference.h"
#include "slices.h"

namespace qkv::test {

struct RunOptions {
  int threads = 1;
  Layout layout = Layout::contiguous;  ///< of every output of rank 4
  bool backward = true;
};

/// An output to be written, poisoned, and its row-major copy afterwards. Fails the current test when memory beside the
/// output was written.
class Output {
 public:
  Output() = default;
  Output(DType dtype, const Dims& shape, Layout layout) : memory_(dtype, shape, layout) {}
  /// Of the shape and dtype of a tensor; absent when that is.
  static Output like(const TensorView& tensor, Layout layout);
  MutableTensorView view() const { return memory_ ? memory_.view() : MutableTensorView(); }
  Tensor result(const char* name) const;

 private:
  StridedTensor memory_;
};

/// Adds `name` and a blank to `names` when the bits of two results differ.
void add_difference(std::string& names, const char* name, const Tensor& a, const Tensor& b);

/// Results as row-major tensors, for compare() and for comparing bits. Fails the current test when an output element
/// was not written or memory beside the outputs was.
AttentionReference run_operation(const Call& call, const RunOptions& run = {});
inline AttentionReference run_operation(const TestProblem& problem, const RunOptions& run = {}) {
  return run_operation(whole(problem), run);
}

/// Names of the results whose bits differ, or "" when all agree (absent ones in both).
std::string different_bits(const AttentionReference& a, const AttentionReference& b);

/// Runs `body` once per instruction set of this machine, with that set chosen; restores the best one at the end.
template <class F>
void for_each_target(F body);

}  // namespace qkv::test

#include <gtest/gtest.h>

#include "qkv/kernels/targets.h"

template <class F>
void qkv::test::for_each_target(F body) {
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    choose_target(target);
    ASSERT_EQ(chosen_target(), target);
    body(target);
  }
  choose_target(before);
}
