// SPDX-License-Identifier: Apache-2.0
//
// The modes of attention behind XLA's foreign function interface, for qkv.jax.
//
// One handler, whose attributes say which: `mode`, the names of its buffers in order (`arguments`, `results`,
// separated by blanks), and every option that is no array. Buffers are row-major and are neither copied nor kept.
#include "python/xla/handler.h"

#include <xla/ffi/api/ffi.h>

#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "qkv/attention/attention.h"
#include "qkv/attention/derivatives.h"
#include "qkv/support/error.h"

namespace qkv::python {
namespace {

namespace ffi = xla::ffi;

DType dtype_of(ffi::DataType type, const std::string& name) {
  switch (type) {
    case ffi::DataType::F64: return DType::f64;
    case ffi::DataType::F32: return DType::f32;
    case ffi::DataType::F16: return DType::f16;
    case ffi::DataType::BF16: return DType::bf16;
    case ffi::DataType::PRED: return DType::boolean;
    case ffi::DataType::U8: return DType::u8;
    case ffi::DataType::S32: return DType::i32;
    case ffi::DataType::S64: return DType::i64;
    default: fail(name, ": expected float64, float32, float16, bfloat16, bool, uint8, int32 or int64");
  }
}

Dims dims_of(ffi::AnyBuffer::Dimensions sizes, const std::string& name) {
  require(sizes.size() <= Dims::kMaxRank, name, " has ", sizes.size(), " axes, expected at most ", Dims::kMaxRank);
  Dims dims;
  for (const int64_t size : sizes) dims.push_back(size);
  return dims;
}

/// The attributes of a call; what is not there has its default.
class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& values) : values_(values) {}

  template <class T>
  std::optional<T> get(std::string_view name) const {
    if (!values_.contains(name)) return std::nullopt;
    const auto value = values_.get<T>(name);
    require(value.has_value(), "attribute ", name, " has another type than expected");
    return *value;
  }
  std::string text(std::string_view name) const {
    return std::string(get<std::string_view>(name).value_or(std::string_view()));
  }

 private:
  const ffi::Dictionary& values_;
};

/// Buffers by name.
class Buffers {
 public:
  Buffers(const Attributes& attributes, const ffi::RemainingArgs& arguments, const ffi::RemainingRets& results) {
    size_t index = 0;
    for (std::istringstream names(attributes.text("arguments")); names >> name_; ++index) {
      const ffi::AnyBuffer buffer = arguments.get<ffi::AnyBuffer>(index).value();
      if (name_ == "seed") {
        seed_ = integer(buffer);
      } else {
        const DType dtype = dtype_of(buffer.element_type(), name_);
        inputs_[name_] = TensorView(dtype, buffer.untyped_data(), dims_of(buffer.dimensions(), name_));
      }
    }
    index = 0;
    for (std::istringstream names(attributes.text("results")); names >> name_; ++index) {
      const ffi::AnyBuffer buffer = *results.get<ffi::AnyBuffer>(index).value();
      const DType dtype = dtype_of(buffer.element_type(), name_);
      outputs_[name_] = MutableTensorView(dtype, buffer.untyped_data(), dims_of(buffer.dimensions(), name_));
    }
  }

  TensorView in(const std::string& name) const {
    const auto found = inputs_.find(name);
    return found == inputs_.end() ? TensorView() : found->second;
  }
  MutableTensorView out(const std::string& name) const {
    const auto found = outputs_.find(name);
    return found == outputs_.end() ? MutableTensorView() : found->second;
  }
  std::optional<uint64_t> seed() const { return seed_; }

 private:
  static uint64_t integer(const ffi::AnyBuffer& buffer) {
    require(buffer.size_bytes() == 4 || buffer.size_bytes() == 8, "seed: expected one integer of 32 or 64 bits");
    uint64_t value = 0;
    std::memcpy(&value, buffer.untyped_data(), buffer.size_bytes());  // little-endian, as every machine of XLA's is
    return value;
  }

  std::string name_;
  std::map<std::string, TensorView> inputs_;
  std::map<std::string, MutableTensorView> outputs_;
  std::optional<uint64_t> seed_;
};

Causal causal_of(const Attributes& attributes) {
  const std::string word = attributes.text("causal");
  if (word == "top_left") return Causal::top_left();
  if (word == "bottom_right") return Causal::bottom_right();
  if (word == "offsets") return Causal::with_offsets();
  require(word.empty(),
          "causal: expected 'top_left' (key j <= query i), 'bottom_right' (j <= i + Tk - Tq), an offset or 'offsets', "
          "got '",
          word, "'");
  const auto offset = attributes.get<int64_t>("causal_offset");
  return offset ? Causal::with_offset(*offset) : Causal();
}

void add_arrays(const Buffers& buffers, AttentionOptions& options) {
  options.bias = buffers.in("bias");
  options.mask = buffers.in("mask");
  options.slopes = buffers.in("slopes");
  options.sinks = buffers.in("sinks");
  options.table = buffers.in("table");
  options.offsets = buffers.in("offsets");
  options.key_lengths = buffers.in("key_lengths");
  options.query_lengths = buffers.in("query_lengths");
  options.query_segment = buffers.in("query_segment");
  options.key_segment = buffers.in("key_segment");
  options.block_mask = buffers.in("block_mask");
  options.query_starts = buffers.in("query_starts");
  options.key_starts = buffers.in("key_starts");
}

AttentionOptions options_of(const Attributes& attributes, const Buffers& buffers) {
  AttentionOptions options;
  add_arrays(buffers, options);
  if (const auto scale = attributes.get<double>("scale")) options.scale = *scale;
  options.softcap = attributes.get<double>("softcap").value_or(0.0);
  options.dropout = attributes.get<double>("dropout").value_or(0.0);
  options.causal = causal_of(attributes);
  if (const auto side = attributes.get<int64_t>("window_left")) options.window.left = *side;
  if (const auto side = attributes.get<int64_t>("window_right")) options.window.right = *side;
  options.offset = attributes.get<int64_t>("offset").value_or(0);
  const std::string buckets = attributes.text("buckets");
  require(buckets.empty() || buckets == "bidirectional" || buckets == "causal",
          "buckets: expected 'bidirectional' or 'causal', got '", buckets, "'");
  require(!options.table || !buckets.empty(), "table needs buckets='bidirectional' or buckets='causal'");
  options.buckets.kind = buckets == "causal" ? Buckets::Kind::causal : Buckets::Kind::bidirectional;
  options.buckets.max_distance = attributes.get<int64_t>("max_distance").value_or(options.buckets.max_distance);
  const auto queries = attributes.get<int64_t>("block_queries");
  const auto keys = attributes.get<int64_t>("block_keys");
  if (queries && keys) options.block = {*queries, *keys};
  options.seed = buffers.seed();
  options.threads = static_cast<int>(attributes.get<int64_t>("threads").value_or(0));
  return options;
}

/// One call: everything it needs, and the modes.
struct XlaCall {
  const Buffers& buffers;
  AttentionOptions options;
  TensorView q = buffers.in("q"), k = buffers.in("k"), v = buffers.in("v");

  AttentionState state() const {
    AttentionState state;
    state.row_max = Tensor(buffers.in("row_max"), nullptr);
    state.row_sum = Tensor(buffers.in("row_sum"), nullptr);
    state.out = buffers.in("out");
    if (state.out.dtype() != q.dtype()) state.wide_out = Tensor(state.out, nullptr);
    return state;
  }

  void forward() const {
    const AttentionState state = attention_forward(q, k, v, options, buffers.out("out"));
    attention_lse(state, buffers.out("lse"));
    copy(state.row_max.view(), buffers.out("row_max"));
    copy(state.row_sum.view(), buffers.out("row_sum"));
    if (const MutableTensorView wide = buffers.out("wide_out")) copy(state.out, wide);
  }

  void backward() const {
    attention_backward(q, k, v, options, state(), {buffers.in("d_out"), buffers.in("d_lse")},
                       gradients<AttentionGradients>());
  }

  void jvp() const {
    attention_jvp(q, k, v, options, state(), tangents<AttentionTangents>(), buffers.out("t_out"), buffers.out("t_lse"));
  }

  void second_order() const {
    attention_second_order(q, k, v, options, state(), {buffers.in("d_out"), buffers.in("d_lse")},
                           tangents<AttentionCotangents>(), gradients<AttentionSecondGradients>());
  }

  template <class Gradients>
  Gradients gradients() const {
    return {.q = buffers.out("q"),
            .k = buffers.out("k"),
            .v = buffers.out("v"),
            .bias = buffers.out("bias"),
            .slopes = buffers.out("slopes"),
            .table = buffers.out("table"),
            .sinks = buffers.out("sinks")};
  }

  template <class Tangents>
  Tangents tangents() const {
    return {.q = buffers.in("t_q"),
            .k = buffers.in("t_k"),
            .v = buffers.in("t_v"),
            .bias = buffers.in("t_bias"),
            .slopes = buffers.in("t_slopes"),
            .table = buffers.in("t_table"),
            .sinks = buffers.in("t_sinks")};
  }
};

void dispatch(const std::string& mode, const XlaCall& call) {
  if (mode == "forward") return call.forward();
  if (mode == "backward") return call.backward();
  if (mode == "jvp") return call.jvp();
  if (mode == "second_order") return call.second_order();
  fail("mode: expected forward, backward, jvp or second_order, got '", mode, "'");
}

ffi::Error attention(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Dictionary values) {
  try {
    const Attributes attributes(values);
    const Buffers buffers(attributes, arguments, results);
    dispatch(attributes.text("mode"), XlaCall{buffers, options_of(attributes, buffers)});
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return {ffi::ErrorCode::kResourceExhausted, "attention: out of memory"};
  } catch (const std::exception& error) {
    return {ffi::ErrorCode::kInvalidArgument, error.what()};
  }
}

XLA_FFI_DEFINE_HANDLER(attention_handler, attention, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

}  // namespace

void add_xla(nanobind::module_& module) {
  module.def(
      "xla_handler", [] { return nanobind::capsule(reinterpret_cast<void*>(attention_handler)); },
      "For jax.ffi.register_ffi_target.");
}

}  // namespace qkv::python
