// SPDX-License-Identifier: Apache-2.0
#include "verify.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "qkv/attention/reference.h"
#include "qkv/support/error.h"
#include "sample.h"

namespace qkv::bench {
namespace {

// Operations that a case's check may cost in the reference, which does about 1e9 a second in scalar f64.
constexpr double kForwardBudget = 4e8;
constexpr double kBackwardBudget = 2e8;
// "A few units in the last place of the largest term."
constexpr double kUnits = 4;

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    default: return 0x1p-23;
  }
}

/// Calls body(offset in a, offset in b) for every index of two views of one shape.
template <class Body>
void for_each(const TensorView& a, const TensorView& b, const Body& body) {
  const Dims& shape = a.shape();
  Dims index = Dims::filled(shape.rank(), 0);
  for (int64_t count = a.elements(), n = 0; n < count; ++n) {
    int64_t at_a = 0, at_b = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      at_a += index[axis] * a.stride(axis);
      at_b += index[axis] * b.stride(axis);
    }
    body(at_a, at_b);
    for (int axis = shape.rank() - 1; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
  }
}

void add(const TensorView& source, const MutableTensorView& target) {
  for_each(source, target, [&](int64_t from, int64_t to) {
    double* sum = static_cast<double*>(target.at(to));
    *sum += load_as_double(source.dtype(), source.at(from));
  });
}

double largest(const TensorView& view) {
  double result = 0;
  for_each(view, view, [&](int64_t at, int64_t) {
    result = std::max(result, std::fabs(load_as_double(view.dtype(), view.at(at))));
  });
  return result;
}

/// Largest difference; infinity where one is NaN or infinite and the other is not the same.
double difference(const TensorView& a, const TensorView& b) {
  double result = 0;
  for_each(a, b, [&](int64_t at_a, int64_t at_b) {
    const double x = load_as_double(a.dtype(), a.at(at_a)), y = load_as_double(b.dtype(), b.at(at_b));
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double error = std::fabs(x - y);
    result = std::max(result, std::isnan(error) ? HUGE_VAL : error);
  });
  return result;
}

/// One result with its f64 value and the plain formula's.
struct Triple {
  TensorView ours, reference, plain;
};

// Promise 3: how many times the plain formula's error a result may have.
constexpr double kForwardFactor = 2;
constexpr double kBackwardFactor = 3;

void judge(Verdict& verdict, const std::string& what, const std::vector<Triple>& parts, double factor, double slack) {
  Verdict::Ratio& worst = factor == kForwardFactor ? verdict.forward : verdict.backward;
  double ours = 0, plain = 0;
  for (const Triple& part : parts) {
    ours = std::max(ours, difference(part.ours, part.reference));
    plain = std::max(plain, difference(part.plain, part.reference));
  }
  if (plain > 0 && ours / plain > worst.value) worst = {ours / plain, what};
  if (ours <= factor * plain + slack || !verdict.passed) return;
  verdict.passed = false;
  verdict.failure =
      concat(what, ": largest error ", ours, ", the plain formula's ", plain, ", allowed ", factor * plain + slack);
}

/// f64 sums over the chunks, in the shape of the case's tensors.
struct Gradients {
  Tensor q, k, v, bias, slopes, table, sinks, scale;
};

MutableTensorView zeros_like(const TensorView& view, Tensor& storage) {
  storage = Tensor(DType::f64, view.shape());
  return storage.mutable_view();
}

void accumulate(const Inputs& inputs, const Chunk& chunk, const AttentionReference& part, Gradients& sum) {
  add(part.d_q.view(), queries_of(inputs, chunk, sum.q.mutable_view()));
  add(part.d_k.view(), keys_of(inputs, chunk, sum.k.mutable_view()));
  add(part.d_v.view(), keys_of(inputs, chunk, sum.v.mutable_view()));
  if (sum.bias) add(part.d_bias.view(), bias_of(chunk, sum.bias.mutable_view()));
  if (sum.slopes) add(part.d_slopes.view(), sum.slopes.mutable_view());
  if (sum.table) add(part.d_table.view(), sum.table.mutable_view());
  if (sum.sinks) add(part.d_sinks.view(), sum.sinks.mutable_view());
  if (sum.scale) {
    *static_cast<double*>(sum.scale.mutable_view().data()) +=
        load_as_double(part.d_scale.dtype(), part.d_scale.view().data());
  }
}

Gradients zero_gradients(const Inputs& inputs) {
  Gradients sum;
  const AttentionGradients& like = inputs.gradients;
  zeros_like(like.q, sum.q);
  zeros_like(like.k, sum.k);
  zeros_like(like.v, sum.v);
  if (like.bias) zeros_like(like.bias, sum.bias);
  if (like.slopes) zeros_like(like.slopes, sum.slopes);
  if (like.table) zeros_like(like.table, sum.table);
  if (like.sinks) zeros_like(like.sinks, sum.sinks);
  if (like.scale) zeros_like(like.scale, sum.scale);
  return sum;
}

/// The bytes of every result, to compare numbers of threads.
std::vector<char> bytes_of(const std::vector<const Tensor*>& tensors) {
  std::vector<char> bytes;
  for (const Tensor* tensor : tensors) {
    if (!*tensor) continue;
    const char* begin = static_cast<const char*>(tensor->view().data());
    bytes.insert(bytes.end(), begin, begin + tensor->view().elements() * size_of(tensor->dtype()));
  }
  return bytes;
}

void require_same_bits(Verdict& verdict, const std::vector<const Tensor*>& results, const std::vector<int>& threads,
                       const std::function<void(int)>& call) {
  call(threads.front());
  const std::vector<char> first = bytes_of(results);
  for (size_t t = 1; t < threads.size() && verdict.passed; ++t) {
    call(threads[t]);
    if (bytes_of(results) == first) continue;
    verdict.passed = false;
    verdict.failure = concat("other bits with ", threads[t], " threads than with ", threads.front());
  }
}

void verify_forward(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks,
                    Verdict& verdict) {
  require_same_bits(verdict, {&inputs.out.storage, &inputs.lse.storage}, threads, [&](int count) {
    AttentionOptions options = inputs.options;
    options.threads = count;
    attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view, inputs.lse.view);
  });
  std::vector<AttentionReference> kept;
  std::vector<Triple> outs, sums;
  for (const Chunk& chunk : chunks) {
    const Part part(inputs, chunk);
    for (const Arithmetic arithmetic : {Arithmetic::reference, Arithmetic::plain}) {
      kept.push_back(attention_reference(part.q, part.k, part.v, part.options, arithmetic));
    }
    const AttentionReference &exact = kept[kept.size() - 2], &plain = kept.back();
    outs.push_back({queries_of(inputs, chunk, inputs.out.view), exact.out.view(), plain.out.view()});
    sums.push_back({queries_of(inputs, chunk, inputs.lse.view), exact.lse.view(), plain.lse.view()});
  }
  double largest_lse = 0;
  for (const Triple& part : sums) {
    const double size = largest(part.reference);
    if (std::isfinite(size)) largest_lse = std::max(largest_lse, size);
  }
  judge(verdict, "out", outs, kForwardFactor, kUnits * epsilon(inputs.spec.dtype) * largest(inputs.v.view));
  judge(verdict, "lse", sums, kForwardFactor, kUnits * epsilon(inputs.lse.view.dtype()) * largest_lse);
}

/// An upstream gradient that is zero outside of the chunks.
Placed sampled_upstream(const Inputs& inputs, const std::vector<Chunk>& chunks) {
  Placed placed;
  placed.storage = Tensor(inputs.d_out.storage.dtype(), inputs.d_out.storage.shape());
  const MutableTensorView& like = inputs.d_out.view;
  placed.view = MutableTensorView(like.dtype(), placed.storage.mutable_view().data(), like.shape(), like.strides());
  for (const Chunk& chunk : chunks) copy(queries_of(inputs, chunk, like), queries_of(inputs, chunk, placed.view));
  return placed;
}

void verify_backward(Inputs& inputs, const std::vector<int>& threads, const std::vector<Chunk>& chunks,
                     Verdict& verdict) {
  Gradients exact = zero_gradients(inputs), plain = zero_gradients(inputs);
  for (const Chunk& chunk : chunks) {
    const Part part(inputs, chunk);
    accumulate(inputs, chunk,
               attention_reference(part.q, part.k, part.v, part.options, Arithmetic::reference, part.d_out), exact);
    accumulate(inputs, chunk, attention_reference(part.q, part.k, part.v, part.options, Arithmetic::plain, part.d_out),
               plain);
  }
  const auto call = [&](int count, const TensorView& d_out) {
    AttentionOptions options = inputs.options;
    options.threads = count;
    const AttentionState state =
        attention_forward(inputs.q.view, inputs.k.view, inputs.v.view, options, inputs.out.view);
    attention_backward(inputs.q.view, inputs.k.view, inputs.v.view, options, state, d_out, inputs.gradients);
  };
  const double unit = kUnits * epsilon(inputs.spec.dtype);
  const auto compare = [&](const char* name, const TensorView& ours, const Tensor& reference, const Tensor& formula) {
    if (!ours) return;
    const double slack = kUnits * epsilon(ours.dtype()) * largest(reference.view());
    judge(verdict, name, {{ours, reference.view(), formula.view()}}, kBackwardFactor, slack);
  };
  require_same_bits(verdict,
                    {&inputs.d_q.storage, &inputs.d_k.storage, &inputs.d_v.storage, &inputs.d_bias, &inputs.d_slopes,
                     &inputs.d_table, &inputs.d_sinks, &inputs.d_scale},
                    threads, [&](int count) { call(count, inputs.d_out.view); });
  std::vector<Triple> rows;
  for (const Chunk& chunk : chunks) {
    rows.push_back({queries_of(inputs, chunk, inputs.d_q.view), queries_of(inputs, chunk, exact.q.mutable_view()),
                    queries_of(inputs, chunk, plain.q.mutable_view())});
  }
  judge(verdict, "d_q", rows, kBackwardFactor, unit * largest(exact.q.view()));
  const Placed upstream = sampled_upstream(inputs, chunks);
  call(threads.front(), upstream.view);
  const AttentionGradients& ours = inputs.gradients;
  compare("d_q of sampled rows", ours.q, exact.q, plain.q);
  compare("d_k", ours.k, exact.k, plain.k);
  compare("d_v", ours.v, exact.v, plain.v);
  compare("d_bias", ours.bias, exact.bias, plain.bias);
  compare("d_slopes", ours.slopes, exact.slopes, plain.slopes);
  compare("d_table", ours.table, exact.table, plain.table);
  compare("d_sinks", ours.sinks, exact.sinks, plain.sinks);
  compare("d_scale", ours.scale, exact.scale, plain.scale);
}

std::string describe(const Inputs& inputs, const std::vector<Chunk>& chunks) {
  if (covers_everything(inputs, chunks)) return "all rows";
  int64_t rows = 0;
  for (const Chunk& chunk : chunks) rows += chunk.entries * chunk.rows;
  return concat(rows, " queries of every head");
}

}  // namespace

Verdict verify(Inputs& inputs, const Work& work, const std::vector<int>& threads) {
  Verdict verdict;
  verdict.checked = true;
  const std::vector<Chunk> forward_rows = sample(inputs, work, kForwardBudget);
  verify_forward(inputs, threads, forward_rows, verdict);
  verdict.scope = "out, lse: " + describe(inputs, forward_rows);
  if (inputs.has_gradients()) {
    const std::vector<Chunk> backward_rows = sample(inputs, work, kBackwardBudget);
    verify_backward(inputs, threads, backward_rows, verdict);
    verdict.scope += "; gradients: " + describe(inputs, backward_rows);
  }
  return verdict;
}

}  // namespace qkv::bench
