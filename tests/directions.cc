// SPDX-License-Identifier: Apache-2.0
#include "directions.h"

#include <cmath>
#include <limits>

namespace qkv::test {

Directions::Directions(const TestProblem& problem, uint64_t seed, uint32_t moving)
    : stream_(seed ^ 0xd12ec7), layout_(problem.spec.layout) {
  const AttentionOptions& options = problem.options;
  const bool equal = problem.spec.values == Values::nearly_equal;
  const double common = equal ? 3 : 0;
  const double noise = equal ? 0.01 : 1;
  const auto make_if = [&](Moving which, const TensorView& like) {
    return (moving & which) != 0 && like ? make(like, common, noise) : TensorView();
  };
  tangents.q = make_if(kMoveQ, problem.q);
  tangents.k = make_if(kMoveK, problem.k);
  tangents.v = make_if(kMoveV, problem.v);
  tangents.bias = make_if(kMoveBias, options.bias);
  tangents.slopes = make_if(kMoveSlopes, options.slopes);
  tangents.table = make_if(kMoveTable, options.table);
  tangents.sinks = make_if(kMoveSinks, options.sinks);
  d_out = make(problem.d_out, common, noise);
  if (problem.d_lse) d_lse = make(problem.d_lse, common, noise);
  if ((moving & kMoveScale) == 0) return;
  StridedTensor& scale = memory_.emplace_back(problem.lse_dtype(), Dims{1}, Layout::contiguous);
  scale.fill([&](int64_t) { return stream_.normal(); });
  tangents.scale = scale.view();
}

TensorView Directions::make(const TensorView& like, double common, double noise) {
  const bool small = like.rank() < 2;
  StridedTensor& tensor = memory_.emplace_back(like.dtype(), like.shape(),
                                               small && layout_ == Layout::expanded ? Layout::contiguous : layout_);
  tensor.fill([&](int64_t) { return common + noise * stream_.normal(); });
  return tensor.view();
}

void Directions::poison_hidden(const TestProblem& problem) {
  // The hidden elements of the problem itself are NaN by now; no visible one is.
  const auto poison = [](const TensorView& tensor, const TensorView& direction) {
    if (!direction) return;
    for (int64_t i = 0; i < direction.elements(); ++i) {
      if (!std::isnan(element(tensor, i))) continue;
      store_from_double(direction.dtype(), const_cast<void*>(element_address(direction, i)),
                        std::numeric_limits<double>::quiet_NaN());
    }
  };
  poison(problem.k, tangents.k);
  poison(problem.v, tangents.v);
  poison(problem.options.bias, tangents.bias);
}

Moved::Moved(TestProblem& problem, const Directions& along, double h)
    : problem_(problem), scale_(problem.options.scale) {
  const AttentionTangents& tangents = along.tangents;
  move(problem.q, tangents.q, h);
  move(problem.k, tangents.k, h);
  move(problem.v, tangents.v, h);
  move(problem.options.bias, tangents.bias, h);
  move(problem.options.slopes, tangents.slopes, h);
  move(problem.options.table, tangents.table, h);
  move(problem.options.sinks, tangents.sinks, h);
  move(problem.d_out, along.d_out, h);
  move(problem.d_lse, along.d_lse, h);
  if (!tangents.scale) return;
  const double scale = scale_.value_or(1 / std::sqrt(std::max(static_cast<double>(problem.spec.D), 1.0)));
  problem.options.scale = scale + h * element(tangents.scale, 0);
}

void Moved::move(const TensorView& tensor, const TensorView& direction, double h) {
  if (!tensor || !direction) return;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    void* const address = const_cast<void*>(element_address(tensor, i));
    const double before = load_as_double(tensor.dtype(), address);
    elements_.push_back({address, before});
    store_from_double(tensor.dtype(), address, before + h * element(direction, i));
  }
}

Moved::~Moved() {
  for (const Element& one : elements_) *static_cast<double*>(one.address) = one.before;
  problem_.options.scale = scale_;
}

double inner(const TensorView& a, const TensorView& b) {
  if (!a || !b) return 0;
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double term = element(a, i) * element(b, i);
    if (std::isfinite(term)) sum += term;
  }
  return sum;
}

}  // namespace qkv::test
