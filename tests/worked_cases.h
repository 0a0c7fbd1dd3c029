// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "qkv/attention/attention.h"
#include "strided.h"

namespace qkv::test {

using Numbers = std::vector<double>;

/// One head worked out by hand. Inputs and what must come out, row-major; an empty vector is absent, or not stated.
struct WorkedCase {
  std::string name;
  int64_t Tq = 1, Tk = 1, D = 1, Dv = 1;
  Numbers q = {}, k = {}, v = {};
  AttentionOptions options = {};                ///< the numbers; tensors are below
  Numbers bias = {}, mask = {};                 ///< [Tq or 1, Tk]
  Numbers slopes = {}, sinks = {}, table = {};  ///< [1], [1], [buckets]
  Numbers d_out = {}, d_lse = {};

  Numbers out = {}, lse = {};
  Numbers d_q = {}, d_k = {}, d_v = {}, d_bias = {}, d_slopes = {}, d_sinks = {}, d_table = {}, d_scale = {};
};

/// The worked cases of the project, and the rules of the semantics on numbers a reader can check in the head. Results
/// match within `worked_bound`.
std::vector<WorkedCase> worked_cases();

/// A case as tensors of rank 2.
class WorkedProblem {
 public:
  WorkedProblem(const WorkedCase& worked, DType dtype);
  WorkedProblem(const WorkedProblem&) = delete;
  WorkedProblem& operator=(const WorkedProblem&) = delete;
  TensorView q, k, v;
  AttentionOptions options;
  TensorView d_out, d_lse;  ///< absent when the case has none

 private:
  TensorView make(DType dtype, const Dims& shape, const std::vector<double>& values);
  std::deque<StridedTensor> memory_;
};

/// Largest error a case may have: the inputs are rounded to the dtype once, and numbers are below 100.
double worked_bound(DType dtype);

}  // namespace qkv::test
