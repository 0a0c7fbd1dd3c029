// SPDX-License-Identifier: Apache-2.0
#include "slices.h"

#include <algorithm>
#include <deque>

namespace qkv::test {
namespace {

/// Axis of a tensor of q's rank or 4, counted from the right: 1 is the last.
TensorView slice_from_right(const TensorView& view, int from_right, int64_t begin, int64_t end) {
  if (!view || view.rank() < from_right) return view;
  return slice(view, view.rank() - from_right, begin, end, true);
}

/// Small integer vectors that calls refer to; they live as long as the tests.
TensorView integers(std::vector<int64_t> values) {
  static std::deque<std::vector<int64_t>> memory;
  const std::vector<int64_t>& kept = memory.emplace_back(std::move(values));
  return {kept.data(), Dims{static_cast<int64_t>(kept.size())}};
}

}  // namespace

TensorView slice(const TensorView& view, int axis, int64_t begin, int64_t end, bool broadcast) {
  if (!view || (broadcast && view.size(axis) == 1)) return view;
  Dims shape = view.shape();
  shape[axis] = end - begin;
  const bool empty = view.data() == nullptr || view.elements() == 0;
  return {view.dtype(), empty ? view.data() : view.at(begin * view.stride(axis)), shape, view.strides()};
}

Call whole(const TestProblem& problem) {
  return {problem.q, problem.k, problem.v, problem.d_out, problem.d_lse, problem.options};
}

Call batch_entry(const TestProblem& problem, int64_t b) {
  Call call = whole(problem);
  for (TensorView* view :
       {&call.q, &call.k, &call.v, &call.d_out, &call.d_lse, &call.options.key_lengths, &call.options.query_lengths,
        &call.options.offsets, &call.options.query_segment, &call.options.key_segment}) {
    *view = slice(*view, 0, b, b + 1);
  }
  for (TensorView* view : {&call.options.bias, &call.options.mask, &call.options.block_mask}) {
    *view = slice_from_right(*view, 4, b, b + 1);
  }
  return call;
}

Call query_chunk(const TestProblem& problem, int64_t begin, int64_t end) {
  Call call = whole(problem);
  AttentionOptions& options = call.options;
  const int rank = problem.q.rank();
  const int64_t Tq = problem.q.size(rank - 2);
  const int64_t Tk = problem.k.size(rank - 2);
  call.q = slice_from_right(call.q, 2, begin, end);
  call.d_out = slice_from_right(call.d_out, 2, begin, end);
  call.d_lse = slice_from_right(call.d_lse, 1, begin, end);
  const bool broadcast_bias = options.bias && options.bias.size(options.bias.rank() - 2) == 1;
  if (options.bias && !broadcast_bias) options.bias = slice_from_right(options.bias, 2, begin, end);
  if (options.mask) options.mask = slice_from_right(options.mask, 2, begin, end);
  if (options.query_segment) options.query_segment = slice(options.query_segment, 1, begin, end);
  if (options.block_mask) {
    const int64_t side = options.block.queries;
    options.block_mask = slice_from_right(options.block_mask, 2, begin / side, (end + side - 1) / side);
  }
  if (options.query_lengths) {
    std::vector<int64_t> lengths;
    for (const double length : elements(options.query_lengths)) {
      lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(length) - begin, 0, end - begin));
    }
    options.query_lengths = integers(std::move(lengths));
  }
  if (options.offsets) {
    std::vector<int64_t> offsets;
    for (const double offset : elements(options.offsets)) offsets.push_back(static_cast<int64_t>(offset) + begin);
    options.offsets = integers(std::move(offsets));
  } else if (options.causal) {
    const int64_t offset = options.causal.kind() == Causal::Kind::offset         ? options.causal.offset()
                           : options.causal.kind() == Causal::Kind::bottom_right ? Tk - Tq
                                                                                 : 0;
    options.causal = Causal::with_offset(offset + begin);
  } else {
    options.offset += begin;
  }
  return call;
}

}  // namespace qkv::test
