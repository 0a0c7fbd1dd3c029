// SPDX-License-Identifier: Apache-2.0
//
// A state is three arrays that the caller keeps: row_max and row_sum [B, H, Tq] ([total_q, H] when packed), and `out`,
// in float32 where the output is narrower. Dicts map names of inputs (q, k, v, bias, ...) to arrays.
#include "python/src/in_place.h"

#include <string>

#include "python/src/call.h"
#include "python/src/run.h"
#include "qkv/attention/attention.h"
#include "qkv/attention/derivatives.h"
#include "qkv/support/error.h"

namespace qkv::python {
namespace {

TensorView entry(Inputs& inputs, const nb::dict& arrays, const char* name) {
  return arrays.contains(name) ? inputs.view(arrays[name], name) : TensorView();
}

MutableTensorView mutable_entry(Inputs& inputs, const nb::dict& arrays, const char* name) {
  return arrays.contains(name) ? inputs.mutable_view(arrays[name], name) : MutableTensorView();
}

AttentionState state_of(Call& call, const nb::tuple& arrays) {
  AttentionState state;
  state.row_max = Tensor(call.inputs.view(arrays[0], "row_max"), nullptr);
  state.row_sum = Tensor(call.inputs.view(arrays[1], "row_sum"), nullptr);
  state.out = call.inputs.view(arrays[2], "out");
  if (state.out.dtype() != call.q.dtype()) state.wide_out = Tensor(state.out, nullptr);
  return state;
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const MutableTensorView out_view = call.inputs.mutable_view(out, "out");
  MutableTensorView lse_view;
  if (!lse.is_none()) lse_view = call.inputs.mutable_view(lse, "lse");
  run([&] { attention_forward(call.q, call.k, call.v, call.options, out_view, lse_view); });
}

void forward_with_state(nb::handle q, nb::handle k, nb::handle v, const nb::dict& results, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const auto result = [&](const char* name) { return mutable_entry(call.inputs, results, name); };
  const MutableTensorView out = result("out"), lse = result("lse"), row_max = result("row_max"),
                          row_sum = result("row_sum"), wide_out = result("wide_out");
  require(out && lse && row_max && row_sum, "results: out, lse, row_max and row_sum are needed");
  run([&] {
    const AttentionState state = attention_forward(call.q, call.k, call.v, call.options, out);
    attention_lse(state, lse);
    copy(state.row_max.view(), row_max);
    copy(state.row_sum.view(), row_sum);
    if (wide_out) copy(state.out, wide_out);
  });
}

void backward(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& state_arrays, nb::handle d_out,
              nb::handle d_lse, const nb::dict& results, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const AttentionState state = state_of(call, state_arrays);
  const AttentionUpstream upstream(call.inputs.view(d_out, "d_out"), call.inputs.optional_view(d_lse, "d_lse"));
  const auto result = [&](const char* name) { return mutable_entry(call.inputs, results, name); };
  const AttentionGradients gradients{.q = result("q"),
                                     .k = result("k"),
                                     .v = result("v"),
                                     .bias = result("bias"),
                                     .slopes = result("slopes"),
                                     .table = result("table"),
                                     .sinks = result("sinks"),
                                     .scale = result("scale")};
  run([&] { attention_backward(call.q, call.k, call.v, call.options, state, upstream, gradients); });
}

void jvp(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& state_arrays, const nb::dict& tangent_arrays,
         nb::handle t_out, nb::handle t_lse, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const AttentionState state = state_of(call, state_arrays);
  const auto tangent = [&](const char* name) { return entry(call.inputs, tangent_arrays, name); };
  const AttentionTangents tangents{.q = tangent("q"),
                                   .k = tangent("k"),
                                   .v = tangent("v"),
                                   .bias = tangent("bias"),
                                   .slopes = tangent("slopes"),
                                   .table = tangent("table"),
                                   .sinks = tangent("sinks"),
                                   .scale = tangent("scale")};
  const MutableTensorView out_view = call.inputs.mutable_view(t_out, "t_out");
  const MutableTensorView lse_view = call.inputs.mutable_view(t_lse, "t_lse");
  run([&] { attention_jvp(call.q, call.k, call.v, call.options, state, tangents, out_view, lse_view); });
}

void second_order(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& state_arrays, nb::handle d_out,
                  nb::handle d_lse, const nb::dict& cotangent_arrays, const nb::dict& results,
                  const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const AttentionState state = state_of(call, state_arrays);
  const AttentionUpstream upstream(call.inputs.view(d_out, "d_out"), call.inputs.optional_view(d_lse, "d_lse"));
  const auto cotangent = [&](const char* name) { return entry(call.inputs, cotangent_arrays, name); };
  const auto result = [&](const char* name) { return mutable_entry(call.inputs, results, name); };
  const AttentionCotangents cotangents{.q = cotangent("q"),
                                       .k = cotangent("k"),
                                       .v = cotangent("v"),
                                       .bias = cotangent("bias"),
                                       .slopes = cotangent("slopes"),
                                       .table = cotangent("table"),
                                       .sinks = cotangent("sinks")};
  const AttentionSecondGradients gradients{.q = result("q"),
                                           .k = result("k"),
                                           .v = result("v"),
                                           .bias = result("bias"),
                                           .d_out = result("d_out"),
                                           .slopes = result("slopes"),
                                           .table = result("table"),
                                           .sinks = result("sinks"),
                                           .d_lse = result("d_lse")};
  run([&] { attention_second_order(call.q, call.k, call.v, call.options, state, upstream, cotangents, gradients); });
}

}  // namespace

void add_in_place(nb::module_& module) {
  module.def("forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
             nb::arg("options"));
  module.def("forward_with_state", &forward_with_state, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("results"),
             nb::arg("options"));
  module.def("backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("state"), nb::arg("d_out"),
             nb::arg("d_lse").none(), nb::arg("results"), nb::arg("options"));
  module.def("jvp", &jvp, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("state"), nb::arg("tangents"),
             nb::arg("t_out"), nb::arg("t_lse"), nb::arg("options"));
  module.def("second_order", &second_order, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("state"),
             nb::arg("d_out"), nb::arg("d_lse").none(), nb::arg("cotangents"), nb::arg("results"), nb::arg("options"));
}

}  // namespace qkv::python
