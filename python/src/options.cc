// SPDX-License-Identifier: Apache-2.0
#include "python/src/options.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "qkv/support/error.h"

namespace qkv::python {

const char* const kOptionsSignature =
    "scale: float | None = None, softcap: float = 0.0, "
    "causal: str | int | None = None, window: tuple[int | None, int | None] | None = None, "
    "offset: int = 0, offsets: Integers | None = None, "
    "bias: Array | None = None, mask: Array | None = None, "
    "slopes: Numbers | None = None, sinks: Numbers | None = None, "
    "table: Array | None = None, buckets: str | None = None, max_distance: int = 128, "
    "key_lengths: Integers | None = None, query_lengths: Integers | None = None, "
    "query_segment: Array | None = None, key_segment: Array | None = None, "
    "block_mask: Array | None = None, block: tuple[int, int] | None = None, "
    "query_starts: Integers | None = None, key_starts: Integers | None = None, "
    "dropout: float = 0.0, seed: int | None = None, threads: int = 0";

const char* const kOptionsText = R"(
Options, all by keyword; None is off
------------------------------------
scale : factor of q . k; None is 1/sqrt(D)
softcap : s becomes softcap * tanh(s / softcap); 0 is off
causal : "top_left" (key j <= query i), "bottom_right" (j <= i + Tk - Tq), an integer offset (j <= i + offset), or
    "offsets" (the array of that name). There is no default alignment.
window : (left, right): query i sees keys i + offset - left to i + offset + right; None is unbounded
offset, offsets : key position of query 0, without causal; offsets [B] per batch entry
bias : [B|1, H|1, Tq|1, Tk|1], dtype of q or float32, added to the scores; -inf hides a key
mask : [B|1, H|1, Tq|1, Tk|1] bool or uint8; nonzero is visible
slopes : [H], ALiBi: adds -slope * |i + offset - j|
sinks : [H], a logit that joins the denominator only
table : [H, buckets] relative positions by T5's rule; needs buckets="bidirectional" or "causal"; max_distance
key_lengths, query_lengths : [B]; keys beyond are hidden, rows beyond are empty
query_segment, key_segment : [B, Tq], [B, Tk]; a query sees keys of its own id
block_mask, block : [B|1, H|1, ceil(Tq/bq), ceil(Tk/bk)] and (bq, bk): block-sparse
query_starts, key_starts : [S + 1] cumulative; then q is [total_q, H, D], k and v likewise (packed sequences)
dropout, seed : weights are dropped with this probability, by a counter: the same for any number of threads
threads : 0 is all CPUs the process may use; the result does not depend on it

A row that sees no key gives 0, and every gradient 0. Hidden keys may hold NaN. Raises ValueError (shapes, values) or
TypeError (dtypes, things that are no arrays) with one sentence that names the argument, what was expected and what
came.
)";

namespace {

/// Everything a setter may need.
struct Target {
  AttentionOptions& options;
  Inputs& inputs;
  bool f64;
  bool has_buckets = false;

  TensorView integers(nb::handle value, const char* name) const { return inputs.numbers(value, name, "int64"); }
  TensorView numbers(nb::handle value, const char* name) const {
    return inputs.numbers(value, name, f64 ? "float64" : "float32");
  }
};

std::string text_of(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

double number(nb::handle value, const char* name) {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result != -1.0 || PyErr_Occurred() == nullptr) return result;
  PyErr_Clear();
  throw nb::type_error(concat(name, ": expected a number, got ", text_of(value)).c_str());
}

int64_t integer(nb::handle value, const char* name) {
  const nb::object index = nb::steal(PyBool_Check(value.ptr()) ? nullptr : PyNumber_Index(value.ptr()));
  if (index.is_valid()) {
    const long long result = PyLong_AsLongLong(index.ptr());
    if (result != -1 || PyErr_Occurred() == nullptr) return result;
  }
  PyErr_Clear();
  throw nb::type_error(concat(name, ": expected an integer of 64 bits, got ", text_of(value)).c_str());
}

Causal causal(nb::handle value) {
  if (value.ptr() == Py_False) return {};
  if (nb::isinstance<nb::str>(value)) {
    const auto word = nb::cast<std::string>(value);
    if (word == "top_left") return Causal::top_left();
    if (word == "bottom_right") return Causal::bottom_right();
    if (word == "offsets") return Causal::with_offsets();
  } else if (!nb::isinstance<nb::bool_>(value) && PyIndex_Check(value.ptr()) != 0) {
    return Causal::with_offset(integer(value, "causal"));
  }
  fail(
      "causal: expected 'top_left' (key j <= query i), 'bottom_right' (j <= i + Tk - Tq), an offset or 'offsets', got ",
      text_of(value));
}

std::pair<nb::object, nb::object> pair(nb::handle value, const char* name, const char* what) {
  if (PySequence_Check(value.ptr()) == 0 || PySequence_Size(value.ptr()) != 2) {
    PyErr_Clear();
    fail(name, ": expected ", what, ", got ", text_of(value));
  }
  return {value[0], value[1]};
}

Window window(nb::handle value) {
  const auto [left, right] = pair(value, "window", "(left, right), either of them None for unbounded");
  Window result;
  if (!left.is_none()) result.left = integer(left, "window");
  if (!right.is_none()) result.right = integer(right, "window");
  return result;
}

BlockShape block(nb::handle value) {
  const auto [queries, keys] = pair(value, "block", "(queries, keys), the sides of a block");
  return {integer(queries, "block"), integer(keys, "block")};
}

Buckets::Kind buckets(nb::handle value) {
  const std::string word = nb::isinstance<nb::str>(value) ? nb::cast<std::string>(value) : "";
  if (word == "bidirectional") return Buckets::Kind::bidirectional;
  if (word == "causal") return Buckets::Kind::causal;
  fail("buckets: expected 'bidirectional' or 'causal', got ", text_of(value));
}

uint64_t seed(nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (index.is_valid()) {
    const unsigned long long result = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return result;
  }
  PyErr_Clear();
  throw nb::type_error(concat("seed: expected an integer of 0 to 2^64 - 1, got ", text_of(value)).c_str());
}

int threads(nb::handle value) {
  const int64_t count = integer(value, "threads");
  require(count >= 0 && count <= 4096, "threads: expected 0 (all) to 4096, got ", count);
  return static_cast<int>(count);
}

using Setter = void (*)(Target&, nb::handle);

const std::unordered_map<std::string_view, Setter>& setters() {
  static const std::unordered_map<std::string_view, Setter> table = {
      {"scale", [](Target& t, nb::handle value) { t.options.scale = number(value, "scale"); }},
      {"softcap", [](Target& t, nb::handle value) { t.options.softcap = number(value, "softcap"); }},
      {"causal", [](Target& t, nb::handle value) { t.options.causal = causal(value); }},
      {"window", [](Target& t, nb::handle value) { t.options.window = window(value); }},
      {"offset", [](Target& t, nb::handle value) { t.options.offset = integer(value, "offset"); }},
      {"offsets", [](Target& t, nb::handle value) { t.options.offsets = t.integers(value, "offsets"); }},
      {"bias", [](Target& t, nb::handle value) { t.options.bias = t.inputs.view(value, "bias"); }},
      {"mask", [](Target& t, nb::handle value) { t.options.mask = t.inputs.view(value, "mask"); }},
      {"slopes", [](Target& t, nb::handle value) { t.options.slopes = t.numbers(value, "slopes"); }},
      {"sinks", [](Target& t, nb::handle value) { t.options.sinks = t.numbers(value, "sinks"); }},
      {"table", [](Target& t, nb::handle value) { t.options.table = t.inputs.view(value, "table"); }},
      {"buckets",
       [](Target& t, nb::handle value) {
         t.options.buckets.kind = buckets(value);
         t.has_buckets = true;
       }},
      {"max_distance",
       [](Target& t, nb::handle value) { t.options.buckets.max_distance = integer(value, "max_distance"); }},
      {"key_lengths", [](Target& t, nb::handle value) { t.options.key_lengths = t.integers(value, "key_lengths"); }},
      {"query_lengths",
       [](Target& t, nb::handle value) { t.options.query_lengths = t.integers(value, "query_lengths"); }},
      {"query_segment",
       [](Target& t, nb::handle value) { t.options.query_segment = t.integers(value, "query_segment"); }},
      {"key_segment", [](Target& t, nb::handle value) { t.options.key_segment = t.integers(value, "key_segment"); }},
      {"block_mask", [](Target& t, nb::handle value) { t.options.block_mask = t.inputs.view(value, "block_mask"); }},
      {"block", [](Target& t, nb::handle value) { t.options.block = block(value); }},
      {"query_starts", [](Target& t, nb::handle value) { t.options.query_starts = t.integers(value, "query_starts"); }},
      {"key_starts", [](Target& t, nb::handle value) { t.options.key_starts = t.integers(value, "key_starts"); }},
      {"dropout", [](Target& t, nb::handle value) { t.options.dropout = number(value, "dropout"); }},
      {"seed", [](Target& t, nb::handle value) { t.options.seed = seed(value); }},
      {"threads", [](Target& t, nb::handle value) { t.options.threads = threads(value); }},
  };
  return table;
}

}  // namespace

AttentionOptions parse_options(const nb::kwargs& keywords, bool f64, Inputs& inputs) {
  AttentionOptions options;
  Target target{options, inputs, f64};
  for (const auto& [key, value] : keywords) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
    if (text == nullptr) throw nb::python_error();
    const auto setter = setters().find(std::string_view(text, static_cast<size_t>(length)));
    if (setter == setters().end()) {
      throw nb::type_error(concat("attention has no option named '", text, "'").c_str());
    }
    if (!value.is_none()) setter->second(target, value);
  }
  require(!options.table || target.has_buckets, "table needs buckets='bidirectional' or buckets='causal'");
  require(options.causal.kind() != Causal::Kind::offsets || options.offsets,
          "causal='offsets' needs the array offsets, which did not come");
  require(!options.causal || options.offset == 0,
          "offset and causal exclude each other: a causal mask says itself where queries stand");
  return options;
}

}  // namespace qkv::python
