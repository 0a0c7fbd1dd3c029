// SPDX-License-Identifier: Apache-2.0
#include "python/src/derivatives.h"

#include <string>

#include "python/src/call.h"
#include "python/src/run.h"
#include "qkv/attention/attention.h"
#include "qkv/attention/derivatives.h"
#include "qkv/support/error.h"

namespace qkv::python {
namespace {

/// What the two functions are given beside the options: arrays by keyword, absent or None where they are zero.
class Directions {
 public:
  explicit Directions(Call& call) : call_(call) {}
  TensorView operator()(nb::handle array, const char* name) { return call_.inputs.optional_view(array, name); }
  TensorView numbers(nb::handle array, const char* name) {
    return array.is_none() ? TensorView() : call_.inputs.numbers(array, name, call_.number_dtype_name());
  }

 private:
  Call& call_;
};

struct Tangents {
  nb::handle q, k, v, bias, slopes, table, sinks, scale;
};

nb::dict run_jvp(Call& call, const Tangents& arrays) {
  Directions direction(call);
  const AttentionTangents tangents{.q = direction(arrays.q, "t_q"),
                                   .k = direction(arrays.k, "t_k"),
                                   .v = direction(arrays.v, "t_v"),
                                   .bias = direction(arrays.bias, "t_bias"),
                                   .slopes = direction.numbers(arrays.slopes, "t_slopes"),
                                   .table = direction(arrays.table, "t_table"),
                                   .sinks = direction.numbers(arrays.sinks, "t_sinks"),
                                   .scale = direction.numbers(arrays.scale, "t_scale")};
  Output out(call.q.dtype(), call.out_shape()), lse(call.number_dtype(), call.row_shape());
  Output t_out(call.q.dtype(), call.out_shape()), t_lse(call.number_dtype(), call.row_shape());
  run([&] {
    const AttentionState state = attention_forward(call.q, call.k, call.v, call.options, out.view);
    attention_lse(state, lse.view);
    attention_jvp(call.q, call.k, call.v, call.options, state, tangents, t_out.view, t_lse.view);
  });
  nb::dict results;
  results["out"] = out.array;
  results["lse"] = lse.array;
  results["t_out"] = t_out.array;
  results["t_lse"] = t_lse.array;
  return results;
}

nb::dict attention_jvp_of(nb::handle q, nb::handle k, nb::handle v, nb::handle t_q, nb::handle t_k, nb::handle t_v,
                          nb::handle t_bias, nb::handle t_slopes, nb::handle t_table, nb::handle t_sinks,
                          nb::handle t_scale, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  return run_jvp(call, {t_q, t_k, t_v, t_bias, t_slopes, t_table, t_sinks, t_scale});
}

struct Cotangents {
  nb::handle q, k, v, bias, slopes, table, sinks;
};

nb::dict run_second_order(Call& call, nb::handle d_out, nb::handle d_lse, const Cotangents& arrays) {
  Directions direction(call);
  const AttentionUpstream upstream(call.inputs.view(d_out, "d_out"), direction(d_lse, "d_lse"));
  const AttentionCotangents cotangents{.q = direction(arrays.q, "c_q"),
                                       .k = direction(arrays.k, "c_k"),
                                       .v = direction(arrays.v, "c_v"),
                                       .bias = direction(arrays.bias, "c_bias"),
                                       .slopes = direction.numbers(arrays.slopes, "c_slopes"),
                                       .table = direction(arrays.table, "c_table"),
                                       .sinks = direction.numbers(arrays.sinks, "c_sinks")};
  AttentionSecondGradients gradients;
  nb::dict results;
  const auto want = [&](const char* name, DType dtype, const Dims& shape, MutableTensorView& gradient) {
    Output output(dtype, shape);
    gradient = output.view;
    results[name] = output.array;
  };
  const auto want_like = [&](const char* name, const TensorView& tensor, MutableTensorView& gradient) {
    if (tensor) want(name, tensor.dtype(), tensor.shape(), gradient);
  };
  want_like("g_q", call.q, gradients.q);
  want_like("g_k", call.k, gradients.k);
  want_like("g_v", call.v, gradients.v);
  want_like("g_bias", call.options.bias, gradients.bias);
  want_like("g_slopes", call.options.slopes, gradients.slopes);
  want_like("g_table", call.options.table, gradients.table);
  want_like("g_sinks", call.options.sinks, gradients.sinks);
  want("g_d_out", call.q.dtype(), call.out_shape(), gradients.d_out);
  want("g_d_lse", call.number_dtype(), call.row_shape(), gradients.d_lse);
  Output out(call.q.dtype(), call.out_shape());
  run([&] {
    const AttentionState state = attention_forward(call.q, call.k, call.v, call.options, out.view);
    attention_second_order(call.q, call.k, call.v, call.options, state, upstream, cotangents, gradients);
  });
  return results;
}

nb::dict second_order(nb::handle q, nb::handle k, nb::handle v, nb::handle d_out, nb::handle d_lse, nb::handle c_q,
                      nb::handle c_k, nb::handle c_v, nb::handle c_bias, nb::handle c_slopes, nb::handle c_table,
                      nb::handle c_sinks, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  return run_second_order(call, d_out, d_lse, {c_q, c_k, c_v, c_bias, c_slopes, c_table, c_sinks});
}

}  // namespace

void add_derivatives(nb::module_& module) {
  static const std::string jvp_signature = concat(
      "def attention_jvp(q: Array, k: Array, v: Array, *, t_q: Array | None = None, t_k: Array | None = None, "
      "t_v: Array | None = None, t_bias: Array | None = None, t_slopes: Numbers | None = None, "
      "t_table: Array | None = None, t_sinks: Numbers | None = None, t_scale: Numbers | None = None, ",
      kOptionsSignature, ") -> dict[str, numpy.ndarray]");
  static const std::string jvp_text = concat(
      "The forward pass and its derivative along tangents of the inputs, in O(n) memory.\n\n"
      "t_q, t_k, ... have the shape and dtype of their tensors, t_scale [1] is float32 (float64); None is zero.\n"
      "Returns a dict: out, lse, t_out (as out) and t_lse (as lse).\n",
      kOptionsText);
  module.def("attention_jvp", &attention_jvp_of, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(),
             nb::arg("t_q") = nb::none(), nb::arg("t_k") = nb::none(), nb::arg("t_v") = nb::none(),
             nb::arg("t_bias") = nb::none(), nb::arg("t_slopes") = nb::none(), nb::arg("t_table") = nb::none(),
             nb::arg("t_sinks") = nb::none(), nb::arg("t_scale") = nb::none(), nb::arg("options"),
             nb::sig(jvp_signature.c_str()), jvp_text.c_str());

  static const std::string second_signature = concat(
      "def attention_second_order(q: Array, k: Array, v: Array, d_out: Array, *, d_lse: Array | None = None, "
      "c_q: Array | None = None, c_k: Array | None = None, c_v: Array | None = None, c_bias: Array | None = None, "
      "c_slopes: Numbers | None = None, c_table: Array | None = None, c_sinks: Numbers | None = None, ",
      kOptionsSignature, ") -> dict[str, numpy.ndarray]");
  static const std::string second_text = concat(
      "Second derivatives, in O(n) memory: the gradients of <c_q, d_q> + <c_k, d_k> + ..., where d_q, d_k, ... are "
      "the\n"
      "gradients of <d_out, out> (+ <d_lse, lse>). With the cotangents c as a vector, a Hessian-vector product. The\n"
      "scale is held constant.\n\n"
      "d_out [B, H, Tq, Dv], d_lse [B, H, Tq]; c_q, c_k, ... have the shape and dtype of their tensors; None is zero.\n"
      "Returns a dict: g_q, g_k, g_v, g_bias, g_slopes, g_table, g_sinks (those that are given), g_d_out and "
      "g_d_lse.\n",
      kOptionsText);
  module.def("attention_second_order", &second_order, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("d_out"),
             nb::kw_only(), nb::arg("d_lse") = nb::none(), nb::arg("c_q") = nb::none(), nb::arg("c_k") = nb::none(),
             nb::arg("c_v") = nb::none(), nb::arg("c_bias") = nb::none(), nb::arg("c_slopes") = nb::none(),
             nb::arg("c_table") = nb::none(), nb::arg("c_sinks") = nb::none(), nb::arg("options"),
             nb::sig(second_signature.c_str()), second_text.c_str());
}

}  // namespace qkv::python
