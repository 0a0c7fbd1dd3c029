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

AttentionSecondReference run_second(const Call& call, const AttentionCotangents& cotangents, const RunOptions& run) {
  AttentionOptions options = call.options;
  options.threads = run.threads;
  const Output out = Output::like(call.d_out, run.layout);
  const Output g_q = Output::like(call.q, run.layout);
  const Output g_k = Output::like(call.k, run.layout);
  const Output g_v = Output::like(call.v, run.layout);
  const Output g_bias = Output::like(options.bias, run.layout);
  const Output g_d_out = Output::like(call.d_out, run.layout);
  const Output g_slopes = Output::like(options.slopes, Layout::contiguous);
  const Output g_table = Output::like(options.table, Layout::contiguous);
  const Output g_sinks = Output::like(options.sinks, Layout::contiguous);
  Dims rows;
  for (int axis = 0; axis + 1 < call.q.rank(); ++axis) rows.push_back(call.q.size(axis));
  const Output g_d_lse(call.q.dtype() == DType::f64 ? DType::f64 : DType::f32, rows, Layout::contiguous);
  const AttentionState state = attention_forward(call.q, call.k, call.v, options, out.view());
  attention_second_order(call.q, call.k, call.v, options, state, {call.d_out, call.d_lse}, cotangents,
                         {.q = g_q.view(),
                          .k = g_k.view(),
                          .v = g_v.view(),
                          .bias = g_bias.view(),
                          .d_out = g_d_out.view(),
                          .slopes = g_slopes.view(),
                          .table = g_table.view(),
                          .sinks = g_sinks.view(),
                          .d_lse = g_d_lse.view()});
  return {.g_q = g_q.result("g_q"),
          .g_k = g_k.result("g_k"),
          .g_v = g_v.result("g_v"),
          .g_bias = g_bias.result("g_bias"),
          .g_d_out = g_d_out.result("g_d_out"),
          .g_slopes = g_slopes.result("g_slopes"),
          .g_table = g_table.result("g_table"),
          .g_sinks = g_sinks.result("g_sinks"),
          .g_d_lse = g_d_lse.result("g_d_lse")};
}

std::string different_bits(const AttentionSecondReference& a, const AttentionSecondReference& b) {
  std::string names;
  add_difference(names, "g_q", a.g_q, b.g_q);
  add_difference(names, "g_k", a.g_k, b.g_k);
  add_difference(names, "g_v", a.g_v, b.g_v);
  add_difference(names, "g_bias", a.g_bias, b.g_bias);
  add_difference(names, "g_d_out", a.g_d_out, b.g_d_out);
  add_difference(names, "g_slopes", a.g_slopes, b.g_slopes);
  add_difference(names, "g_table", a.g_table, b.g_table);
  add_difference(names, "g_sinks", a.g_sinks, b.g_sinks);
  add_difference(names, "g_d_lse", a.g_d_lse, b.g_d_lse);
  return names;
}

}  // namespace qkv::test
