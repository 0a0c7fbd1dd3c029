// SPDX-License-Identifier: Apache-2.0
//
// The probes under test, run on a TestProblem.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "problems.h"
#include "qkv/attention/probe.h"
#include "qkv/kernels/targets.h"

namespace qkv::test {

/// Row-major results.
struct Statistics {
  Tensor row_entropy, row_max, row_top, key_mass;
};

inline Dims key_shape(const TestProblem& problem) {
  Dims shape = problem.lse_shape();
  const bool packed = static_cast<bool>(problem.options.key_starts);
  shape[packed ? 0 : shape.rank() - 1] = problem.k.size(packed ? 0 : problem.k.rank() - 2);
  return shape;
}

inline Statistics run_statistics(const TestProblem& problem, const AttentionOptions& options) {
  Statistics results{Tensor(problem.lse_dtype(), problem.lse_shape()), Tensor(problem.lse_dtype(), problem.lse_shape()),
                     Tensor(DType::i64, problem.lse_shape()), Tensor(problem.lse_dtype(), key_shape(problem))};
  attention_statistics(problem.q, problem.k, problem.v, options,
                       {results.row_entropy.mutable_view(), results.row_max.mutable_view(),
                        results.row_top.mutable_view(), results.key_mass.mutable_view()});
  return results;
}
inline Statistics run_statistics(const TestProblem& problem) { return run_statistics(problem, problem.options); }

inline Tensor run_weights(const TestProblem& problem, const AttentionOptions& options, Range queries, Range keys) {
  Dims shape = problem.lse_shape();
  shape[shape.rank() - 1] = queries.end - queries.begin;
  shape.push_back(keys.end - keys.begin);
  Tensor weights(problem.lse_dtype(), shape);
  attention_weights(problem.q, problem.k, problem.v, options, queries, keys, weights.mutable_view());
  return weights;
}
inline Tensor run_weights(const TestProblem& problem) {
  return run_weights(problem, problem.options, {0, problem.spec.Tq}, {0, problem.spec.Tk});
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const size_t bytes = static_cast<size_t>(a.view().elements() * size_of(a.dtype()));
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (bytes == 0 || std::memcmp(a.view().data(), b.view().data(), bytes) == 0);
}
inline void expect_same_bits(const Statistics& a, const Statistics& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.row_entropy, b.row_entropy)) << what << ": row_entropy";
  EXPECT_TRUE(same_bits(a.row_max, b.row_max)) << what << ": row_max";
  EXPECT_TRUE(same_bits(a.row_top, b.row_top)) << what << ": row_top";
  EXPECT_TRUE(same_bits(a.key_mass, b.key_mass)) << what << ": key_mass";
}

/// Unit in the last place of 1 in the compute type.
inline double unit(const TestProblem& problem) { return problem.spec.dtype == DType::f64 ? 0x1p-52 : 0x1p-23; }

/// Runs `body` with each instruction set of this machine chosen.
inline void on_each_target(const std::function<void(const std::string&)>& body) {
  const std::string before = chosen_target();
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    choose_target(target);
    ASSERT_EQ(chosen_target(), target);
    body(target);
  }
  choose_target(before);
}

/// A problem of one head from plain numbers, in f64 unless said otherwise. q [Tq, D], k [Tk, D], v [Tk, Dv].
struct SmallHead {
  DType dtype = DType::f64;
  int64_t D = 1, Dv = 1;
  std::vector<double> q, k, v;
};

class SmallProblem {
 public:
  explicit SmallProblem(const SmallHead& head)
      : q_(tensor(head.dtype, head.q, head.D)),
        k_(tensor(head.dtype, head.k, head.D)),
        v_(tensor(head.dtype, head.v, head.Dv)),
        q(q_.view()),
        k(k_.view()),
        v(v_.view()) {
    options.scale = 1;
  }

  Statistics statistics() const {
    const DType number = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
    Statistics results{Tensor(number, {q.size(0)}), Tensor(number, {q.size(0)}), Tensor(DType::i64, {q.size(0)}),
                       Tensor(number, {k.size(0)})};
    attention_statistics(q, k, v, options,
                         {results.row_entropy.mutable_view(), results.row_max.mutable_view(),
                          results.row_top.mutable_view(), results.key_mass.mutable_view()});
    return results;
  }

 private:
  static StridedTensor tensor(DType dtype, const std::vector<double>& values, int64_t columns) {
    StridedTensor result(dtype, {static_cast<int64_t>(values.size()) / columns, columns}, Layout::contiguous);
    result.fill([&](int64_t i) { return values[static_cast<size_t>(i)]; });
    return result;
  }
  StridedTensor q_, k_, v_;

 public:
  TensorView q, k, v;
  AttentionOptions options;
};

}  // namespace qkv::test
