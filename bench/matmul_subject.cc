// SPDX-License-Identifier: Apache-2.0
#include "matmul_subject.h"

#include <algorithm>
#include <cmath>

#include "fill.h"
#include "qkv/support/error.h"

namespace qkv::bench {
namespace {

// Multiply-adds of a check, twice over: the exact sum and the plain one.
constexpr int64_t kBudget = 150'000'000;

double unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-52;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    default: return 0x1p-23;
  }
}

/// First, middle and last rows.
std::vector<int64_t> sampled_rows(int64_t rows, int64_t row_cost) {
  const int64_t count = std::min(rows, std::max<int64_t>(9, kBudget / std::max<int64_t>(1, row_cost)));
  std::vector<int64_t> sample;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t third = s % 3, step = s / 3;
    const int64_t row = third == 0 ? step : third == 1 ? rows - 1 - step : rows / 2 + step;
    sample.push_back(std::clamp<int64_t>(row, 0, rows - 1));
  }
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

/// x by the tanh form.
template <class T>
T gelu_tanh(T x) {
  const T inner = static_cast<T>(0.7978845608028653558798921198687637L) * (x + static_cast<T>(0.044715L) * x * x * x);
  return x * (1 + std::tanh(inner)) / 2;
}

/// One product to compare: result = x y, with an ending when the bias is there.
struct Product {
  const char* name;
  TensorView x, y;  ///< [rows, inner], [inner, columns]
  TensorView result;
  TensorView bias, residual;
};

/// Sums of a row in the type Exact and, as the plain formula, in the type Plain.
template <class Exact, class Plain>
AccuracyComparison compare(const Product& product, double factor) {
  const int64_t inner = product.x.size(1), columns = product.y.size(1);
  const Tensor y = converted(product.y, DType::f64);
  const double* values = static_cast<const double*>(y.view().data());
  AccuracyComparison comparison{.name = product.name, .factor = factor};
  double largest_term = 0, largest_result = 0;
  std::vector<Exact> exact(static_cast<size_t>(columns));
  std::vector<Plain> plain(static_cast<size_t>(columns));
  const auto element = [](const TensorView& view, int64_t i, int64_t j) {
    return load_as_double(view.dtype(), view.at(i * view.stride(0) + j * view.stride(1)));
  };
  for (const int64_t i : sampled_rows(product.x.size(0), inner * columns)) {
    std::fill(exact.begin(), exact.end(), Exact(0));
    std::fill(plain.begin(), plain.end(), Plain(0));
    for (int64_t k = 0; k < inner; ++k) {
      const double x = element(product.x, i, k);
      for (int64_t n = 0; n < columns; ++n) {
        const double factor_y = values[k * columns + n];
        exact[static_cast<size_t>(n)] += static_cast<Exact>(x) * static_cast<Exact>(factor_y);
        plain[static_cast<size_t>(n)] += static_cast<Plain>(x) * static_cast<Plain>(factor_y);
        largest_term = std::max(largest_term, std::fabs(x * factor_y));
      }
    }
    for (int64_t n = 0; n < columns; ++n) {
      Exact& sum = exact[static_cast<size_t>(n)];
      Plain& formula = plain[static_cast<size_t>(n)];
      if (product.bias) {
        const double bias = load_as_double(product.bias.dtype(), product.bias.at(n));
        const double residual = element(product.residual, i, n);
        sum = gelu_tanh(sum + static_cast<Exact>(bias)) + static_cast<Exact>(residual);
        formula = gelu_tanh(formula + static_cast<Plain>(bias)) + static_cast<Plain>(residual);
      }
      double stored = 0;  // room for any dtype
      store_from_double(product.result.dtype(), &stored, static_cast<double>(formula));
      const Exact rounded = static_cast<Exact>(load_as_double(product.result.dtype(), &stored));
      const Exact ours = static_cast<Exact>(element(product.result, i, n));
      const double error = static_cast<double>(std::fabs(ours - sum));
      comparison.error = std::isnan(error) ? HUGE_VAL : std::max(comparison.error, error);
      comparison.plain_error = std::max(comparison.plain_error, static_cast<double>(std::fabs(rounded - sum)));
      largest_result = std::max(largest_result, static_cast<double>(std::fabs(sum)));
    }
  }
  // A few units in the last place of the largest term, and one of the largest result for its store.
  const bool wide = product.result.dtype() == DType::f64;
  comparison.allowance =
      4 * unit(wide ? DType::f64 : DType::f32) * largest_term + unit(product.result.dtype()) * largest_result;
  return comparison;
}

AccuracyComparison compare(const Product& product, double factor) {
  if (product.x.dtype() == DType::f64) return compare<long double, double>(product, factor);
  return compare<double, float>(product, factor);
}

Tensor filled(DType dtype, const Dims& shape, uint64_t seed) {
  Tensor tensor(dtype, shape);
  fill_bell(tensor, seed, 1.0);
  return tensor;
}

}  // namespace

MatmulSubject::MatmulSubject(const Case& which) : Subject(which) {
  const DType dtype = spec.dtype;
  a_ = filled(dtype, {spec.M, spec.K}, 21);
  b_ = filled(dtype, spec.columns ? Dims{spec.N, spec.K} : Dims{spec.K, spec.N}, 22);
  c_ = Tensor(dtype, {spec.M, spec.N});
  fill_zero(c_.mutable_view());
  if (spec.prepared) prepared_ = PackedMatrix(weights());
  if (spec.linear) {
    bias_ = filled(dtype, {spec.N}, 23);
    residual_ = filled(dtype, {spec.M, spec.N}, 24);
    options_.bias = bias_.view();
    options_.activation = Activation::gelu_tanh;
    options_.residual = residual_.view();
  }
  const bool derivatives =
      std::any_of(spec.modes.begin(), spec.modes.end(), [](Mode mode) { return mode != Mode::forward; });
  if (!derivatives) return;
  require(!spec.linear, "bench: ", spec.name, ": a linear layer is timed forward only");
  d_c_ = filled(dtype, {spec.M, spec.N}, 25);
  d_a_ = Tensor(dtype, {spec.M, spec.K});
  d_b_ = Tensor(dtype, {spec.K, spec.N});
  fill_zero(d_a_.mutable_view());
  fill_zero(d_b_.mutable_view());
}

Work MatmulSubject::work() const {
  Work work;
  const double M = static_cast<double>(spec.M), N = static_cast<double>(spec.N), K = static_cast<double>(spec.K);
  work.forward_operations = 2 * M * N * K;
  work.backward_operations = 2 * work.forward_operations;
  work.few_rows = spec.M;
  work.read_bytes = K * N * static_cast<double>(size_of(spec.dtype));
  return work;
}

std::function<void()> MatmulSubject::call(Mode mode, int threads) {
  const auto forward = [this, threads] {
    MatmulOptions options = options_;
    options.threads = threads;
    if (spec.prepared) {
      matmul(a_.view(), prepared_, c_.mutable_view(), options);
    } else {
      matmul(a_.view(), weights(), c_.mutable_view(), options);
    }
  };
  if (mode == Mode::forward) return forward;
  const auto backward = [this, threads] {
    const MatmulOptions options{.threads = threads};
    matmul(d_c_.view(), transposed(b_.view()), d_a_.mutable_view(), options);
    matmul(transposed(a_.view()), d_c_.view(), d_b_.mutable_view(), options);
  };
  if (mode == Mode::backward) return backward;
  return [forward, backward] {
    forward();
    backward();
  };
}

Verdict MatmulSubject::verify(const std::vector<int>& threads) {
  Verdict verdict;
  verdict.checked = true;
  require_same_bits(verdict, {&c_}, threads, [&](int count) { call(Mode::forward, count)(); });
  Comparisons forward;
  forward.add({compare({"c", a_.view(), weights(), c_.view(), bias_.view(), residual_.view()}, 2)});
  forward.judge(verdict, verdict.forward);
  if (has_gradients()) {
    require_same_bits(verdict, {&d_a_, &d_b_}, threads, [&](int count) { call(Mode::backward, count)(); });
    Comparisons backward;
    backward.add({compare({"d_a", d_c_.view(), transposed(b_.view()), d_a_.view(), {}, {}}, 3),
                  compare({"d_b", transposed(a_.view()), d_c_.view(), d_b_.view(), {}, {}}, 3)});
    backward.judge(verdict, verdict.backward);
  }
  verdict.scope = concat(has_gradients() ? "c, d_a, d_b" : "c", ": the first, middle and last rows");
  return verdict;
}

std::map<std::string, TensorView> MatmulSubject::tensors() {
  std::map<std::string, TensorView> tensors = {{"a", a_.view()}, {"b", weights()}, {"c", c_.view()}};
  if (bias_) tensors["bias"] = bias_.view();
  if (residual_) tensors["residual"] = residual_.view();
  if (has_gradients()) {
    tensors["d_c"] = d_c_.view();
    tensors["d_a"] = d_a_.view();
  }
  return tensors;
}

}  // namespace qkv::bench
