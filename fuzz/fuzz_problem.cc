// SPDX-License-Identifier: Apache-2.0
// Any call is a problem or is refused in a sentence. A problem runs forward, backward, forward mode and second order
// within its memory (each tensor is an allocation of its own, to the byte), gives the same bits with one thread and
// three, and its empty rows are zero.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "fuzz.h"
#include "qkv/attention.h"
#include "qkv/support/error.h"

namespace qkv {
namespace {

/// Reads decisions from the front of the input; the rest, repeated, fills tensors.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  int64_t byte() { return next_ < size_ ? data_[next_++] : 0; }
  bool chance() { return byte() % 4 == 3; }
  /// Mostly small, now and then beyond a block of keys or queries.
  int64_t length() {
    const int64_t low = byte();
    return low < 250 ? low % 20 : 100 + low;
  }
  int64_t number() { return byte() - 128 + 1000 * (byte() / 250); }
  double real() {
    const int64_t kind = byte();
    if (kind == 255) return std::nan("");
    if (kind == 254) return HUGE_VAL;
    return static_cast<double>(kind - 100) / 16;
  }

  MutableTensorView tensor(DType dtype, const Dims& wanted) {
    Dims shape = wanted;
    if (shape.rank() > 0 && byte() == 255) shape[static_cast<int>(byte() % shape.rank())] = length();
    const int64_t bytes = element_count(shape) * size_of(dtype);
    std::vector<uint8_t>& memory = memory_.emplace_back(static_cast<size_t>(bytes));
    for (uint8_t& element : memory) element = size_ == 0 ? 0 : data_[fill_++ % size_];
    if (dtype != DType::boolean && dtype != DType::u8) tame(dtype, memory);
    return {dtype, memory.data(), shape};
  }
  TensorView integers(const Dims& shape) {
    std::vector<int64_t>& values = integers_.emplace_back();
    for (int64_t n = element_count(shape); n > 0; --n) values.push_back(byte() < 250 ? byte() % 20 : number());
    return {values.data(), shape};
  }

 private:
  /// Most numbers near one, so that not every row is NaN.
  void tame(DType dtype, std::vector<uint8_t>& memory) {
    const int64_t step = size_of(dtype);
    for (size_t at = 0; at + static_cast<size_t>(step) <= memory.size(); at += static_cast<size_t>(step)) {
      if (memory[at] > 250) continue;
      store_from_double(dtype, memory.data() + at, (static_cast<double>(memory[at]) - 100) / 32);
    }
  }

  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;
  size_t fill_ = 0;
  std::deque<std::vector<uint8_t>> memory_;
  std::deque<std::vector<int64_t>> integers_;
};

struct Shape {
  int64_t B, H, Hkv, Tq, Tk, D, Dv;
};

Causal causal(Input& input) {
  switch (input.byte() % 6) {
    case 1: return Causal::top_left();
    case 2: return Causal::bottom_right();
    case 3: return Causal::with_offset(input.number());
    case 4: return Causal::with_offsets();
    default: return {};
  }
}

AttentionOptions read_options(Input& input, const Shape& s, DType dtype, DType wide) {
  AttentionOptions options;
  const auto axis = [&](int64_t size) { return input.chance() ? 1 : size; };
  const auto broadcast = [&] { return Dims{axis(s.B), axis(s.H), axis(s.Tq), axis(s.Tk)}; };
  if (input.chance()) options.scale = input.real();
  if (input.chance()) options.softcap = input.real();
  options.causal = causal(input);
  if (input.chance()) options.window.left = input.number();
  if (input.chance()) options.window.right = input.number();
  if (input.chance()) options.offset = input.number();
  if (input.chance()) options.offsets = input.integers({s.B});
  if (input.chance()) options.bias = input.tensor(input.chance() ? DType::f32 : dtype, broadcast());
  if (input.chance()) options.slopes = input.tensor(wide, {s.H});
  if (input.chance()) options.sinks = input.tensor(wide, {s.H});
  if (input.chance()) {
    options.table = input.tensor(wide, {s.H, input.byte() % 40});
    options.buckets = {input.chance() ? Buckets::Kind::causal : Buckets::Kind::bidirectional, input.number()};
  }
  if (input.chance()) options.mask = input.tensor(input.chance() ? DType::u8 : DType::boolean, broadcast());
  if (input.chance()) options.key_lengths = input.integers({s.B});
  if (input.chance()) options.query_lengths = input.integers({s.B});
  if (input.chance()) {
    options.query_segment = input.integers({s.B, s.Tq});
    options.key_segment = input.integers({s.B, s.Tk});
  }
  if (input.chance()) {
    options.block = {input.byte() % 33, input.byte() % 33};
    const auto blocks = [](int64_t size, int64_t side) { return side > 0 ? (size + side - 1) / side : 1; };
    options.block_mask = input.tensor(
        DType::u8, {axis(s.B), axis(s.H), blocks(s.Tq, options.block.queries), blocks(s.Tk, options.block.keys)});
  }
  if (input.chance()) {
    options.dropout = input.real();
    if (!input.chance()) options.seed = static_cast<uint64_t>(input.byte());
  }
  return options;
}

struct Results {
  std::vector<Tensor> tensors;
  std::vector<Tensor> zero_in_empty_rows;  // besides out
  Tensor lse;
};

Tensor like(const TensorView& view) { return {view.dtype(), view.shape()}; }

/// Forward mode and second order along the inputs themselves.
void add_derivatives(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& d_out,
                     const AttentionOptions& options, const AttentionState& state, Results& results) {
  Tensor t_out = like(d_out), t_lse = like(results.lse.view());
  const AttentionTangents tangents{.q = q,
                                   .k = k,
                                   .v = v,
                                   .bias = options.bias,
                                   .slopes = options.slopes,
                                   .table = options.table,
                                   .sinks = options.sinks};
  attention_jvp(q, k, v, options, state, tangents, t_out.mutable_view(), t_lse.mutable_view());
  Tensor g_q = like(q), g_k = like(k), g_v = like(v), g_d_out = like(d_out), g_bias;
  AttentionSecondGradients gradients{.q = g_q.mutable_view(), .k = g_k.mutable_view(), .v = g_v.mutable_view()};
  gradients.d_out = g_d_out.mutable_view();
  if (options.bias) gradients.bias = (g_bias = like(options.bias)).mutable_view();
  attention_second_order(q, k, v, options, state, d_out, {.q = q, .k = k, .v = v, .bias = options.bias}, gradients);
  results.zero_in_empty_rows = {t_out, g_d_out};
  for (const Tensor& tensor : {t_out, t_lse, g_q, g_k, g_v, g_d_out}) results.tensors.push_back(tensor);
  if (g_bias) results.tensors.push_back(g_bias);
}

Results run(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& d_out,
            const AttentionOptions& options, DType wide) {
  Results results;
  Tensor out(q.dtype(), d_out.shape());
  const AttentionState state = attention_forward(q, k, v, options, out.mutable_view());
  results.lse = Tensor(wide, {q.size(0), q.size(1), q.size(2)});
  attention_lse(state, results.lse.mutable_view());
  Tensor d_q = like(q), d_k = like(k), d_v = like(v), d_scale(wide, {1});
  AttentionGradients gradients{.q = d_q.mutable_view(), .k = d_k.mutable_view(), .v = d_v.mutable_view()};
  gradients.scale = d_scale.mutable_view();
  Tensor d_bias, d_slopes, d_table, d_sinks;
  if (options.bias) gradients.bias = (d_bias = like(options.bias)).mutable_view();
  if (options.slopes) gradients.slopes = (d_slopes = like(options.slopes)).mutable_view();
  if (options.table) gradients.table = (d_table = like(options.table)).mutable_view();
  if (options.sinks) gradients.sinks = (d_sinks = like(options.sinks)).mutable_view();
  attention_backward(q, k, v, options, state, d_out, gradients);
  results.tensors = {out, d_q, d_k, d_v, d_scale};
  for (const Tensor& tensor : {d_bias, d_slopes, d_table, d_sinks}) {
    if (tensor) results.tensors.push_back(tensor);
  }
  add_derivatives(q, k, v, d_out, options, state, results);
  return results;
}

void must_have_zero_empty_rows(const Results& results) {
  const Tensor& out = results.tensors.front();
  const int64_t width = out.shape()[3];
  for (int64_t row = 0; row < results.lse.view().elements(); ++row) {
    const double lse = load_as_double(results.lse.dtype(), results.lse.view().at(row));
    if (lse != -HUGE_VAL) continue;
    for (int64_t c = 0; c < width; ++c) {
      must(load_as_double(out.dtype(), out.view().at(row * width + c)) == 0);
      for (const Tensor& moved : results.zero_in_empty_rows) {
        must(load_as_double(moved.dtype(), moved.view().at(row * width + c)) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace qkv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using qkv::DType;
  qkv::Input input(data, size);
  const DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
  const DType dtype = dtypes[input.byte() % 4];
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  qkv::Shape s{input.byte() % 4, 0, input.byte() % 3, input.length(), input.length(), input.length(), input.length()};
  s.H = s.Hkv * (1 + input.byte() % 3) + (input.byte() == 255 ? 1 : 0);
  const qkv::TensorView q = input.tensor(dtype, {s.B, s.H, s.Tq, s.D});
  const qkv::TensorView k = input.tensor(dtype, {s.B, s.Hkv, s.Tk, s.D});
  const qkv::TensorView v = input.tensor(dtype, {s.B, s.Hkv, s.Tk, s.Dv});
  const qkv::TensorView d_out = input.tensor(dtype, {s.B, s.H, s.Tq, s.Dv});
  try {
    qkv::AttentionOptions options = qkv::read_options(input, s, dtype, wide);
    options.threads = 1;
    const qkv::Results one = qkv::run(q, k, v, d_out, options, wide);
    qkv::must_have_zero_empty_rows(one);
    options.threads = 3;
    const qkv::Results three = qkv::run(q, k, v, d_out, options, wide);
    for (size_t n = 0; n < one.tensors.size(); ++n) {
      qkv::must(qkv::row_major_bytes(one.tensors[n].view()) == qkv::row_major_bytes(three.tensors[n].view()));
    }
  } catch (const qkv::Error& error) {
    qkv::must_be_a_sentence(error.what(), "attention: ");
  }
  return 0;
}
