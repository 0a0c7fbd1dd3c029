// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case.h"
#include "qkv/attention/accuracy.h"
#include "qkv/tensor/tensor.h"

namespace qkv::bench {

/// What a case must do at least.
struct Work {
  int64_t pairs = 0;  ///< visible pairs of query and key, over heads and batch; only these count, exactly
  double forward_operations = 0, backward_operations = 0;  ///< a multiply-add counts two
  double jvp_operations = 0, second_operations = 0;
  double read_bytes = 0;  ///< of a call with few rows: keys and values, or weights, read once
  int64_t few_rows = 0;   ///< queries, or rows of the left matrix

  double operations(Mode mode) const {
    switch (mode) {
      case Mode::forward: return forward_operations;
      case Mode::backward: return backward_operations;
      case Mode::both: return forward_operations + backward_operations;
      case Mode::jvp: return jvp_operations;
      case Mode::second: return second_operations;
    }
    return 0;
  }
};

/// The result of a check against the f64 reference. A ratio is the largest error of a result over the largest error of
/// the plain formula on the same rows.
struct Verdict {
  struct Ratio {
    double value = 0;
    std::string what;  ///< the result it belongs to
  };
  bool passed = true;
  bool checked = false;
  Ratio forward;        ///< the larger of out's and lse's
  Ratio backward;       ///< the largest of the gradients'
  std::string scope;    ///< what was compared
  std::string failure;  ///< the first comparison that failed, with its numbers
};

/// A case with its tensors in place, filled from a fixed seed: one kind of operation each derives from it.
class Subject {
 public:
  explicit Subject(const Case& which) : spec(which) {}
  virtual ~Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  virtual Work work() const = 0;
  /// Runs the case with every number of threads, which must all give the same bits, and holds it against the reference.
  virtual Verdict verify(const std::vector<int>& threads) = 0;
  /// One call to time, valid as long as the subject. What it needs beforehand is computed here.
  virtual std::function<void()> call(Mode mode, int threads) = 0;
  /// For other libraries: the inputs, and the results of the latest calls under the names of problem files.
  virtual std::map<std::string, TensorView> tensors() = 0;

  const Case spec;
};

std::shared_ptr<Subject> make_subject(const Case& spec);

/// Comparisons of every part of a sample, as one of the whole: the largest error of each result against the largest of
/// the plain formula's. The bound of a few rows alone would hang on their luck.
class Comparisons {
 public:
  void add(const std::vector<AccuracyComparison>& parts);
  /// Notes the first that does not hold, and the largest ratio.
  void judge(Verdict& verdict, Verdict::Ratio& worst) const;

 private:
  std::vector<AccuracyComparison> all_;
};

/// Calls with each number of threads; notes in the verdict when the results are not the same bits.
void require_same_bits(Verdict& verdict, const std::vector<const Tensor*>& results, const std::vector<int>& threads,
                       const std::function<void(int)>& call);

}  // namespace qkv::bench
