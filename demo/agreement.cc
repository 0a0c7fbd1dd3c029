// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <qkv/attention.h>

#include "demo.h"

namespace demo {
namespace {

using qkv::Tensor;

/// Largest |a - b|; infinite when one of them is not a number.
double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (int64_t i = 0; i < a.view().elements(); ++i) {
    const double difference = std::fabs(static_cast<double>(floats(a)[i]) - static_cast<double>(floats(b)[i]));
    if (!(difference <= largest)) largest = std::isnan(difference) ? HUGE_VAL : difference;
  }
  return largest;
}

float largest_size(const Tensor& a) {
  float largest = 0;
  for (int64_t i = 0; i < a.view().elements(); ++i) largest = std::max(largest, std::fabs(floats(a)[i]));
  return largest;
}

/// One line of the table, and the error in units in the last place of the largest value; infinite when it is more than
/// `factor` times `plain_error` and a few of those units, which is what docs/numerics.md allows.
double compare(const char* name, const Tensor& result, const Tensor& expected, double plain_error, double factor) {
  const float size = largest_size(expected);
  const double unit = std::nextafter(size, std::numeric_limits<float>::infinity()) - size;
  const double error = largest_difference(result, expected);
  const double allowed = factor * plain_error + 4 * unit;
  std::printf("   %-4s %15.2f %15.1e %8.1f %17.1e %11.1e%s\n", name, size, error, error / unit, plain_error, allowed,
              error <= allowed ? "" : "  FAILS");
  return error <= allowed ? error / unit : HUGE_VAL;
}

struct Compared {
  const char* name;
  Tensor qkv::AttentionReference::*member;
  double factor;
};

}  // namespace

bool show_agreement(const Sentence& s) {
  const qkv::TensorView q = s.q.view(), k = s.k.view(), v = s.v.view();
  const qkv::AttentionOptions options;  // no mask; scale 1/sqrt(D)
  qkv::AttentionReference result;
  for (Tensor* tensor : {&result.out, &result.d_q, &result.d_k, &result.d_v}) *tensor = Tensor(q.dtype(), q.shape());
  result.lse = Tensor(q.dtype(), {1, s.heads(), s.tokens()});

  const qkv::AttentionState state = attention_forward(q, k, v, options, result.out.mutable_view());
  attention_lse(state, result.lse.mutable_view());
  attention_backward(q, k, v, options, state, s.d_out.view(),
                     {.q = result.d_q.mutable_view(), .k = result.d_k.mutable_view(), .v = result.d_v.mutable_view()});
  // What the plain formula loses in f32 is measured without PyTorch's numbers, so that those cannot excuse an error.
  const auto evaluate = [&](qkv::Arithmetic arithmetic) {
    return attention_reference(q, k, v, options, arithmetic, s.d_out.view());
  };
  const qkv::AttentionReference plain = evaluate(qkv::Arithmetic::plain);
  const qkv::AttentionReference exact = evaluate(qkv::Arithmetic::reference);

  std::printf("   %-4s %15s %15s %8s %17s %11s\n", "", "largest value", "largest error", "in ulp", "plain formula's",
              "allowed");
  double worst = 0;
  for (const auto& [name, member, factor] : {Compared{"out", &qkv::AttentionReference::out, 2},
                                             {"lse", &qkv::AttentionReference::lse, 2},
                                             {"d_q", &qkv::AttentionReference::d_q, 3},
                                             {"d_k", &qkv::AttentionReference::d_k, 3},
                                             {"d_v", &qkv::AttentionReference::d_v, 3}}) {
    const Tensor rounded = converted((exact.*member).view(), qkv::DType::f32);
    const double plain_error = largest_difference(plain.*member, rounded);
    worst = std::max(worst, compare(name, result.*member, s.expected.at(name), plain_error, factor));
  }
  const bool agrees = std::isfinite(worst);
  if (agrees) {
    std::printf(
        "\n   Output and gradients agree with PyTorch's f64 results within %.1f ulp (a ulp: the distance of two\n"
        "   neighbouring f32 numbers, here at the largest value of the tensor).\n",
        worst);
  } else {
    std::printf("\n   They do NOT agree with PyTorch's f64 results.\n");
  }
  std::printf("   Allowed: twice the error of the plain formula in f32 (gradients: three times), and 4 ulp.\n");
  return agrees;
}

}  // namespace demo
