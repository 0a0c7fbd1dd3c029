// SPDX-License-Identifier: Apache-2.0
#include "qkv/attention/reference.h"

#include "attention/check.h"
#include "attention/check_view.h"
#include "attention/reference_head.h"
#include "qkv/support/error.h"
#include "qkv/support/parallel.h"

namespace qkv {
namespace {

using namespace definition;

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// Upstream gradients as operands; absent without d_out.
struct Upstream {
  Operand d_out, d_lse;
};

/// Sums of one query head of one batch entry, before they are added over the batch.
template <class T>
struct HeadSums {
  std::vector<T> table;  // [buckets]
  T slope = 0, sink = 0, scale = 0;
};

/// Evaluates a checked problem in T. Results are f64 for the reference, as the operation stores them for plain.
template <class T>
class Evaluation {
 public:
  Evaluation(const Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
             const AttentionOptions& options, Arithmetic arithmetic, Upstream upstream, AttentionReference& results)
      : problem_(problem), upstream_(upstream), options_(options), results_(results) {
    const bool wide = arithmetic == Arithmetic::reference;
    tensor_dtype_ = wide ? DType::f64 : problem.dtype;
    number_dtype_ = wide || problem.is_f64() ? DType::f64 : DType::f32;
    bias_dtype_ = wide ? DType::f64 : options.bias.dtype();
    out_ = tensor(results.out, with_width(q, problem.Dv));
    lse_ = per_row(results.lse, q);
    if (!upstream.d_out) return;
    d_q_ = tensor(results.d_q, q.shape());
    d_k_ = tensor(results.d_k, k.shape());
    d_v_ = tensor(results.d_v, v.shape());
    sums_.resize(index(problem.B * problem.H));
    if (problem.bias) start_bias();
  }

  void run() {
    // Heads are independent, but for a bias they share: its sums run in one order.
    const bool shared_bias = upstream_.d_out && problem_.bias &&
                             ((bias_.stride[0] == 0 && problem_.B > 1) || (bias_.stride[1] == 0 && problem_.H > 1));
    parallel_for(problem_.B * problem_.Hkv, shared_bias ? 1 : problem_.threads,
                 [&](int64_t item, int) { run_head(item / problem_.Hkv, item % problem_.Hkv); });
    if (upstream_.d_out) store_option_gradients();
  }

 private:
  static Dims with_width(const TensorView& view, int64_t width) {
    Dims shape = view.shape();
    shape[shape.rank() - 1] = width;
    return shape;
  }

  Operand tensor(Tensor& result, const Dims& shape) {
    result = Tensor(tensor_dtype_, shape);
    return problem_.packed ? make_operand(result.view(), {-1, 1, 0, 2}) : make_operand(result.view());
  }

  Operand per_row(Tensor& result, const TensorView& q) {
    Dims shape;
    for (int axis = 0; axis + 1 < q.rank(); ++axis) shape.push_back(q.size(axis));
    result = Tensor(number_dtype_, shape);
    if (problem_.packed) return make_operand(result.view(), {-1, 1, 0, -1});
    return make_operand(result.view(), {q.rank() - 4, q.rank() >= 3 ? q.rank() - 3 : -1, q.rank() - 2, -1});
  }

  void start_bias() {
    const TensorView shape(options_.bias.dtype(), nullptr, options_.bias.shape());
    bias_.stride = make_operand(shape).stride;
    bias_.sum.resize(index(shape.elements()));
  }

  void run_head(int64_t b, int64_t hkv) {
    const Sequence& sequence = problem_.sequence(b);
    const HeadInputs<T> inputs(problem_, b, hkv);
    Row<T> row(problem_);
    if (!upstream_.d_out) {
      for_each_row(b, hkv, [&](int64_t h, int64_t i) { forward(inputs, b, h, i, row); });
      return;
    }
    RowGradient<T> gradient(problem_);
    HeadGradients<T> sums(problem_, sequence);
    for_each_row(b, hkv, [&](int64_t h, int64_t i) {
      forward(inputs, b, h, i, row);
      const int64_t at = sequence.q_begin + i;
      for (int64_t c = 0; c < problem_.Dv; ++c) {
        gradient.d_out[index(c)] = load_as<T>(problem_.dtype, upstream_.d_out.at(b, h, at, c));
      }
      gradient.d_lse = upstream_.d_lse ? load_as<T>(upstream_.d_lse.dtype, upstream_.d_lse.at(b, h, at, 0)) : T(0);
      backward_row(problem_, inputs, b, h, i, row, gradient, sums, bias_);
      store_row(d_q_, b, h, at, gradient.d_q.data(), problem_.D);
    });
    store_head(b, hkv, sums);
  }

  template <class F>
  void for_each_row(int64_t b, int64_t hkv, F body) {
    for (int64_t h = hkv * problem_.group(); h < (hkv + 1) * problem_.group(); ++h) {
      for (int64_t i = 0; i < problem_.sequence(b).Tq; ++i) body(h, i);
    }
  }

  void forward(const HeadInputs<T>& inputs, int64_t b, int64_t h, int64_t i, Row<T>& row) {
    forward_row(problem_, inputs, b, h, i, row);
    const int64_t at = problem_.sequence(b).q_begin + i;
    store_row(out_, b, h, at, row.out.data(), problem_.Dv);
    store_row(lse_, b, h, at, &row.lse, 1);
  }

  static void store_row(const Operand& target, int64_t b, int64_t h, int64_t row, const T* values, int64_t count) {
    for (int64_t c = 0; c < count; ++c) store_as<T>(target.dtype, target.mutable_at(b, h, row, c), values[c]);
  }

  void store_head(int64_t b, int64_t hkv, HeadGradients<T>& sums) {
    const Sequence& sequence = problem_.sequence(b);
    for (T& d_k : sums.d_k) d_k *= static_cast<T>(problem_.scale);
    for (int64_t j = 0; j < sequence.Tk; ++j) {
      store_row(d_k_, b, hkv, sequence.k_begin + j, sums.d_k.data() + j * problem_.D, problem_.D);
      store_row(d_v_, b, hkv, sequence.k_begin + j, sums.d_v.data() + j * problem_.Dv, problem_.Dv);
    }
    for (int64_t member = 0; member < problem_.group(); ++member) {
      HeadSums<T>& head = sums_[index(b * problem_.H + hkv * problem_.group() + member)];
      const auto table = sums.d_table.begin() + member * problem_.table_buckets;
      head.table.assign(table, table + problem_.table_buckets);
      head.slope = sums.d_slope[index(member)];
      head.sink = sums.d_sink[index(member)];
      head.scale = sums.d_scale[index(member)];
    }
  }

  /// Adds over the batch (and for the scale over heads), in order.
  void store_option_gradients() {
    const auto sum_over_batch = [&](int64_t h, auto part) {
      T sum = 0;
      for (int64_t b = 0; b < problem_.B; ++b) sum += part(sums_[index(b * problem_.H + h)]);
      return sum;
    };
    const auto store = [&](Tensor& result, int64_t at, T value) {
      store_as<T>(result.dtype(), result.mutable_view().at(at), value);
    };
    results_.d_scale = Tensor(number_dtype_, {1});
    T scale = 0;
    for (const HeadSums<T>& head : sums_) scale += head.scale;
    store(results_.d_scale, 0, scale);
    if (problem_.slopes) results_.d_slopes = Tensor(number_dtype_, {problem_.H});
    if (problem_.sinks) results_.d_sinks = Tensor(number_dtype_, {problem_.H});
    if (problem_.table) results_.d_table = Tensor(number_dtype_, {problem_.H, problem_.table_buckets});
    for (int64_t h = 0; h < problem_.H; ++h) {
      if (problem_.slopes) store(results_.d_slopes, h, sum_over_batch(h, [](const auto& head) { return head.slope; }));
      if (problem_.sinks) store(results_.d_sinks, h, sum_over_batch(h, [](const auto& head) { return head.sink; }));
      for (int64_t bucket = 0; bucket < problem_.table_buckets; ++bucket) {
        store(results_.d_table, h * problem_.table_buckets + bucket,
              sum_over_batch(h, [&](const auto& head) { return head.table[index(bucket)]; }));
      }
    }
    if (!problem_.bias) return;
    results_.d_bias = Tensor(bias_dtype_, options_.bias.shape());
    for (size_t at = 0; at < bias_.sum.size(); ++at) {
      store(results_.d_bias, static_cast<int64_t>(at), bias_.sum[at]);
    }
  }

  const Problem& problem_;
  Upstream upstream_;
  const AttentionOptions& options_;
  AttentionReference& results_;
  DType tensor_dtype_, number_dtype_, bias_dtype_;
  Operand out_, lse_, d_q_, d_k_, d_v_;
  BiasGradient<T> bias_;
  std::vector<HeadSums<T>> sums_;  // [B, H]
};

}  // namespace

AttentionReference attention_reference(const TensorView& q, const TensorView& k, const TensorView& v,
                                       const AttentionOptions& options, Arithmetic arithmetic, const TensorView& d_out,
                                       const TensorView& d_lse) {
  const Problem problem = check_problem(q, k, v, options);
  require(d_out || !d_lse, "attention: d_lse came without d_out");
  Upstream upstream;
  if (d_out) {
    upstream.d_out = check_like(problem, d_out, "d_out", Rows::queries, problem.H, problem.Dv, q.rank());
    if (d_lse) upstream.d_lse = check_per_row(problem, d_lse, "d_lse", q.rank());
  }
  AttentionReference results;
  const auto evaluate = [&](auto zero) {
    Evaluation<decltype(zero)>(problem, q, k, v, options, arithmetic, upstream, results).run();
  };
  if (arithmetic == Arithmetic::plain) {
    problem.is_f64() ? evaluate(0.0) : evaluate(0.0F);
  } else {
    problem.is_f64() ? evaluate(0.0L) : evaluate(0.0);
  }
  return results;
}

}  // namespace qkv
