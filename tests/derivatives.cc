// SPDX-License-Identifier: Apache-2.0
#include "derivatives.h"

namespace qkv::test {

AttentionJvpReference run_jvp(const Call& call, const AttentionTangents& tangents, const RunOptions& run) {
  AttentionOptions options = call.options;
  options.threads = run.threads;
  const DType wide = call.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Dims rows;
  for (int axis = 0; axis + 1 < call.q.rank(); ++axis) rows.push_back(call.q.size(axis));
  const Output out = Output::like(call.d_out, run.layout);
  const Output t_out = Output::like(call.d_out, run.layout);
  const Output t_lse(wide, rows, Layout::contiguous);
  const AttentionState state = attention_forward(call.q, call.k, call.v, options, out.view());
  attention_jvp(call.q, call.k, call.v, options, state, tangents, t_out.view(), t_lse.view());
  return {t_out.result("t_out"), t_lse.result("t_lse")};
}

std::string different_bits(const AttentionJvpReference& a, const AttentionJvpReference& b) {
  std::string names;
  add_difference(names, "t_out", a.t_out, b.t_out);
  add_difference(names, "t_lse", a.t_lse, b.t_lse);
  return names;
}

}  // namespace qkv::test
