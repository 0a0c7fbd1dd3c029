// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include <cstring>

namespace qkv::test {
Tensor Output::result(const char* name) const {
  if (!memory_) return {};
  EXPECT_TRUE(memory_.padding_intact()) << name << ": written beside its elements";
  return converted(view(), view().dtype());
}

Output Output::like(const TensorView& tensor, Layout layout) {
  return tensor ? Output(tensor.dtype(), tensor.shape(), layout) : Output();
}

void add_difference(std::string& names, const char* name, const Tensor& a, const Tensor& b) {
  if (static_cast<bool>(a) != static_cast<bool>(b)) {
    names += std::string(name) + " (absent in one) ";
    return;
  }
  if (!a || a.view().elements() == 0) return;
  const bool equal =
      a.shape() == b.shape() && a.dtype() == b.dtype() &&
      std::memcmp(a.view().data(), b.view().data(), static_cast<size_t>(a.view().elements() * size_of(a.dtype()))) == 0;
  if (!equal) names += std::string(name) + " ";
}

AttentionReference run_operation(const Call& problem, const RunOptions& run) {
  AttentionOptions options = problem.options;
  options.threads = run.threads;
  const DType wide = problem.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Output out(problem.q.dtype(), problem.d_out.shape(), run.layout);
  Dims rows;
  for (int axis = 0; axis + 1 < problem.q.rank(); ++axis) rows.push_back(problem.q.size(axis));
  const Output lse(wide, rows, Layout::contiguous);
  const AttentionState state = attention_forward(problem.q, problem.k, problem.v, options, out.view());
  attention_lse(state, lse.view());
  AttentionReference results;
  results.out = out.result("out");
  results.lse = lse.result("lse");
  if (!run.backward) return results;
  const Output d_q = Output::like(problem.q, run.layout);
  const Output d_k = Output::like(problem.k, run.layout);
  const Output d_v = Output::like(problem.v, run.layout);
  const Output d_bias = Output::like(options.bias, run.layout);
  const Output d_slopes = Output::like(options.slopes, Layout::contiguous);
  const Output d_table = Output::like(options.table, Layout::contiguous);
  const Output d_sinks = Output::like(options.sinks, Layout::contiguous);
  const Output d_scale(wide, Dims{1}, Layout::contiguous);
  attention_backward(problem.q, problem.k, problem.v, options, state, {problem.d_out, problem.d_lse},
                     {.q = d_q.view(),
                      .k = d_k.view(),
                      .v = d_v.view(),
                      .bias = d_bias.view(),
                      .slopes = d_slopes.view(),
                      .table = d_table.view(),
                      .sinks = d_sinks.view(),
                      .scale = d_scale.view()});
  results.d_q = d_q.result("d_q");
  results.d_k = d_k.result("d_k");
  results.d_v = d_v.result("d_v");
  results.d_bias = d_bias.result("d_bias");
  results.d_slopes = d_slopes.result("d_slopes");
  results.d_table = d_table.result("d_table");
  results.d_sinks = d_sinks.result("d_sinks");
  results.d_scale = d_scale.result("d_scale");
  return results;
}

std::string different_bits(const AttentionReference& a, const AttentionReference& b) {
  std::string names;
  add_difference(names, "out", a.out, b.out);
  add_difference(names, "lse", a.lse, b.lse);
  add_difference(names, "d_q", a.d_q, b.d_q);
  add_difference(names, "d_k", a.d_k, b.d_k);
  add_difference(names, "d_v", a.d_v, b.d_v);
  add_difference(names, "d_bias", a.d_bias, b.d_bias);
  add_difference(names, "d_slopes", a.d_slopes, b.d_slopes);
  add_difference(names, "d_table", a.d_table, b.d_table);
  add_difference(names, "d_sinks", a.d_sinks, b.d_sinks);
  add_difference(names, "d_scale", a.d_scale, b.d_scale);
  return names;
}

}  // namespace qkv::test
