// SPDX-License-Identifier: Apache-2.0
//
// A Hessian-vector product through attention, without a Tq x Tk array.
//
// The function is f(q, k, v) = 1/2 |out - target|^2, a least-squares loss of causal attention. Its gradient is
// J^T (out - target), so its Hessian times a vector t = (t_q, t_k, t_v) has two parts:
//
//   H t = J^T (J t)                           forward mode, then backward (the Gauss-Newton part)
//       + second derivatives of <d_out, out>  attention_second_order with the vector as cotangents
//
// The program compares t.H t with a second difference of f along t, and exits with 1 if they disagree.
#include <cmath>
#include <cstdio>
#include <random>

#include "qkv/attention.h"

namespace {

constexpr int64_t kHeads = 2, kT = 300, kWidth = 16;
const qkv::Dims kShape{1, kHeads, kT, kWidth};
const qkv::AttentionOptions kOptions{.causal = qkv::Causal::top_left()};

double* data(qkv::Tensor& tensor) { return static_cast<double*>(tensor.mutable_view().data()); }
const double* data(const qkv::Tensor& tensor) { return static_cast<const double*>(tensor.view().data()); }

qkv::Tensor normal(std::mt19937& random) {
  qkv::Tensor tensor(qkv::DType::f64, kShape);
  std::normal_distribution<double> distribution;
  for (int64_t n = 0; n < tensor.view().elements(); ++n) data(tensor)[n] = distribution(random);
  return tensor;
}

/// a + factor * b
qkv::Tensor sum(const qkv::Tensor& a, double factor, const qkv::Tensor& b) {
  qkv::Tensor result(qkv::DType::f64, kShape);
  for (int64_t n = 0; n < a.view().elements(); ++n) data(result)[n] = data(a)[n] + factor * data(b)[n];
  return result;
}

double inner(const qkv::Tensor& a, const qkv::Tensor& b) {
  double total = 0;
  for (int64_t n = 0; n < a.view().elements(); ++n) total += data(a)[n] * data(b)[n];
  return total;
}

struct Point {
  qkv::Tensor q, k, v;
};

double loss(const Point& at, const qkv::Tensor& target) {
  qkv::Tensor out(qkv::DType::f64, kShape);
  attention_forward(at.q.view(), at.k.view(), at.v.view(), kOptions, out.mutable_view());
  const qkv::Tensor residual = sum(out, -1, target);
  return inner(residual, residual) / 2;
}

/// H t at a point.
Point hessian_times(const Point& at, const qkv::Tensor& target, const Point& t) {
  const qkv::TensorView q = at.q.view(), k = at.k.view(), v = at.v.view();
  qkv::Tensor out(qkv::DType::f64, kShape), t_out(qkv::DType::f64, kShape);
  const qkv::AttentionState state = attention_forward(q, k, v, kOptions, out.mutable_view());

  attention_jvp(q, k, v, kOptions, state, {.q = t.q.view(), .k = t.k.view(), .v = t.v.view()}, t_out.mutable_view(),
                {});
  const auto make = [] { return qkv::Tensor(qkv::DType::f64, kShape); };
  Point first{make(), make(), make()}, second{make(), make(), make()};
  attention_backward(q, k, v, kOptions, state, t_out.view(),
                     {.q = first.q.mutable_view(), .k = first.k.mutable_view(), .v = first.v.mutable_view()});

  const qkv::Tensor d_out = sum(out, -1, target);
  attention_second_order(q, k, v, kOptions, state, d_out.view(), {.q = t.q.view(), .k = t.k.view(), .v = t.v.view()},
                         {.q = second.q.mutable_view(), .k = second.k.mutable_view(), .v = second.v.mutable_view()});
  return {sum(first.q, 1, second.q), sum(first.k, 1, second.k), sum(first.v, 1, second.v)};
}

}  // namespace

int main() {
  std::mt19937 random(7);
  const Point at{normal(random), normal(random), normal(random)};
  const Point t{normal(random), normal(random), normal(random)};
  const qkv::Tensor target = normal(random);

  const Point product = hessian_times(at, target, t);
  const double curvature = inner(product.q, t.q) + inner(product.k, t.k) + inner(product.v, t.v);

  constexpr double kStep = 1e-4;
  const auto moved = [&](double h) { return loss({sum(at.q, h, t.q), sum(at.k, h, t.k), sum(at.v, h, t.v)}, target); };
  const double difference = (moved(kStep) - 2 * moved(0) + moved(-kStep)) / (kStep * kStep);
  std::printf("t.H t by attention_second_order  %.8g\nby a second difference of f      %.8g\n", curvature, difference);
  return std::fabs(curvature - difference) <= 1e-4 * std::fabs(difference) ? 0 : 1;
}
