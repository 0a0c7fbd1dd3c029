// SPDX-License-Identifier: Apache-2.0
#include "python/src/attention.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "python/src/call.h"
#include "python/src/run.h"
#include "qkv/attention/attention.h"
#include "qkv/attention/probe.h"
#include "qkv/support/error.h"

namespace qkv::python {
namespace {

nb::object attention(nb::handle q, nb::handle k, nb::handle v, bool return_lse, const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  Output out(call.q.dtype(), call.out_shape());
  Output lse;
  if (return_lse) lse = Output(call.number_dtype(), call.row_shape());
  run([&] { attention_forward(call.q, call.k, call.v, call.options, out.view, lse.view); });
  return return_lse ? nb::object(nb::make_tuple(out.array, lse.array)) : out.array;
}

/// The gradients to compute: those of `wanted`, or of everything that is there.
class Wanted {
 public:
  explicit Wanted(nb::handle names) : all_(names.is_none()) {
    if (all_) return;
    for (const nb::handle name : names) {
      names_.push_back(nb::cast<std::string>(nb::str(name)));
      bool known = false;
      for (const char* tensor : {"q", "k", "v", "bias", "slopes", "table", "sinks", "scale"}) {
        known = known || names_.back() == tensor;
      }
      require(known, "wanted: expected names of q, k, v, bias, slopes, table, sinks and scale, got '", names_.back(),
              "'");
    }
  }
  bool operator()(const std::string& name, const TensorView& tensor) const {
    if (all_) return static_cast<bool>(tensor);
    for (const std::string& wanted : names_) {
      if (wanted != name) continue;
      require(static_cast<bool>(tensor), "wanted: ", name, " has a gradient only when the array ", name, " is given");
      return true;
    }
    return false;
  }

 private:
  bool all_;
  std::vector<std::string> names_;
};

nb::dict attention_grad(nb::handle q, nb::handle k, nb::handle v, nb::handle d_out, nb::handle d_lse, nb::handle names,
                        const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  const AttentionUpstream upstream(call.inputs.view(d_out, "d_out"), call.inputs.optional_view(d_lse, "d_lse"));
  const Wanted wanted(names);
  Output out(call.q.dtype(), call.out_shape());
  Output lse(call.number_dtype(), call.row_shape());
  AttentionGradients gradients;
  nb::dict results;
  const auto want = [&](const char* name, const TensorView& tensor, MutableTensorView& gradient) {
    if (!wanted(name, tensor)) return;
    Output output(tensor.dtype(), tensor.shape());
    gradient = output.view;
    results[concat("d_", name).c_str()] = output.array;
  };
  const TensorView scale(call.number_dtype(), nullptr, {1});
  want("q", call.q, gradients.q);
  want("k", call.k, gradients.k);
  want("v", call.v, gradients.v);
  want("bias", call.options.bias, gradients.bias);
  want("slopes", call.options.slopes, gradients.slopes);
  want("table", call.options.table, gradients.table);
  want("sinks", call.options.sinks, gradients.sinks);
  want("scale", scale, gradients.scale);
  run([&] {
    const AttentionState state = attention_forward(call.q, call.k, call.v, call.options, out.view);
    attention_lse(state, lse.view);
    attention_backward(call.q, call.k, call.v, call.options, state, upstream, gradients);
  });
  results["out"] = out.array;
  results["lse"] = lse.array;
  return results;
}

Range range_of(nb::handle value) {
  int64_t begin = 0;
  int64_t end = 0;
  require(PySequence_Check(value.ptr()) != 0 && PySequence_Size(value.ptr()) == 2 && nb::try_cast(value[0], begin) &&
              nb::try_cast(value[1], end),
          "tile: expected ((q0, q1), (k0, k1)), half-open ranges of queries and keys");
  return {begin, end};
}

nb::dict probe(nb::handle q, nb::handle k, nb::handle v, nb::handle tile, nb::handle edges,
               const nb::kwargs& keywords) {
  Call call(q, k, v, keywords);
  Output row_entropy(call.number_dtype(), call.row_shape());
  Output row_max(call.number_dtype(), call.row_shape());
  Output row_top(DType::i64, call.row_shape());
  Output key_mass(call.number_dtype(), call.key_shape());
  nb::dict results;
  run([&] {
    attention_statistics(call.q, call.k, call.v, call.options,
                         {row_entropy.view, row_max.view, row_top.view, key_mass.view});
  });
  results["row_entropy"] = row_entropy.array;
  results["row_max"] = row_max.array;
  results["row_top"] = row_top.array;
  results["key_mass"] = key_mass.array;
  if (!tile.is_none()) {
    require(PySequence_Check(tile.ptr()) != 0 && PySequence_Size(tile.ptr()) == 2,
            "tile: expected ((q0, q1), (k0, k1)), half-open ranges of queries and keys");
    const Range queries = range_of(tile[0]);
    const Range keys = range_of(tile[1]);
    require(queries.begin <= queries.end && keys.begin <= keys.end, "tile: a range must not end before it begins");
    Dims shape = call.row_shape();
    if (shape.rank() > 0) shape[shape.rank() - 1] = queries.end - queries.begin;
    shape.push_back(keys.end - keys.begin);
    Output weights(call.number_dtype(), shape);
    run([&] { attention_weights(call.q, call.k, call.v, call.options, queries, keys, weights.view); });
    results["weights"] = weights.array;
  }
  if (!edges.is_none()) {
    int64_t query = 0;
    int64_t count = 0;
    require(PySequence_Check(edges.ptr()) != 0 && PySequence_Size(edges.ptr()) == 2 && nb::try_cast(edges[0], query) &&
                nb::try_cast(edges[1], count),
            "edges: expected (query, count)");
    AttentionEdges found;
    run([&] { found = attention_edges(call.q, call.k, call.v, call.options, query, count); });
    results["edge_keys"] = copied(found.keys);
    results["edge_zero_value"] = copied(found.zero_value);
    results["edge_hide_key"] = copied(found.hide_key);
  }
  return results;
}

std::string text(std::initializer_list<std::string> parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

}  // namespace

void add_attention(nb::module_& module) {
  static const std::string attention_signature =
      text({"def attention(q: Array, k: Array, v: Array, *, return_lse: bool = False, ", kOptionsSignature,
            ") -> numpy.ndarray | tuple[numpy.ndarray, numpy.ndarray]"});
  static const std::string attention_text = text(
      {"out = softmax(scale q k^T + ...) v, exactly, in O(n) memory.\n\n"
       "q [B, H, Tq, D], k [B, Hkv, Tk, D], v [B, Hkv, Tk, Dv], of one dtype: float64, float32, float16 or bfloat16\n"
       "(ml_dtypes, or a DLPack array). Ranks 3 ([H, T, D]) and 2 ([T, D]) too. Any strides, read-only, no copies.\n"
       "Returns out [B, H, Tq, Dv] of the dtype of q; with return_lse also lse [B, H, Tq], float32 (float64 for\n"
       "float64): the log of the sum of exponentials of each row.\n",
       kOptionsText});
  module.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(),
             nb::arg("return_lse") = false, nb::arg("options"), nb::sig(attention_signature.c_str()),
             attention_text.c_str());

  static const std::string grad_signature =
      text({"def attention_grad(q: Array, k: Array, v: Array, d_out: Array, *, d_lse: Array | None = None, "
            "wanted: Sequence[str] | None = None, ",
            kOptionsSignature, ") -> dict[str, numpy.ndarray]"});
  static const std::string grad_text = text(
      {"The forward pass and the gradients of <d_out, out> (+ <d_lse, lse>), in O(n) memory.\n\n"
       "d_out [B, H, Tq, Dv] of the dtype of q, d_lse [B, H, Tq] float32 (float64). `wanted` names the inputs whose\n"
       "gradients to compute, of q k v bias slopes table sinks scale; None is all that are given.\n"
       "Returns a dict: out, lse, and d_q, d_k, d_v, d_bias, ..., d_scale [1], each of its tensor's shape and dtype.\n",
       kOptionsText});
  module.def("attention_grad", &attention_grad, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("d_out"),
             nb::kw_only(), nb::arg("d_lse") = nb::none(), nb::arg("wanted") = nb::none(), nb::arg("options"),
             nb::sig(grad_signature.c_str()), grad_text.c_str());

  static const std::string probe_signature =
      text({"def probe(q: Array, k: Array, v: Array, *, "
            "tile: tuple[tuple[int, int], tuple[int, int]] | None = None, edges: tuple[int, int] | None = None, ",
            kOptionsSignature, ") -> dict[str, numpy.ndarray]"});
  static const std::string probe_text = text(
      {"What the attention weights look like, without ever holding Tq x Tk of them.\n\n"
       "Returns a dict: row_entropy [B, H, Tq] in nats, row_max (the largest weight), row_top (its key, -1 for an "
       "empty\n"
       "row), key_mass [B, H, Tk] (weights summed over queries). tile=((q0, q1), (k0, k1)) adds weights of that tile.\n"
       "edges=(i, count) adds, for query i, its heaviest keys edge_keys [B, H, count] and what removing each does to\n"
       "its output: edge_zero_value and edge_hide_key [B, H, count, Dv].\n",
       kOptionsText});
  module.def("probe", &probe, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("tile") = nb::none(),
             nb::arg("edges") = nb::none(), nb::arg("options"), nb::sig(probe_signature.c_str()), probe_text.c_str());
}

}  // namespace qkv::python
