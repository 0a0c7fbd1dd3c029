// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on vectors of float or double.
//
// gelu(x) = x Phi(x). The tail Phi(-x), x >= 0, is exp(-x^2 / 2) P(t) / (x + c) with t = (x - c) / (x + c) and P
// interpolated in Chebyshev nodes: relative error 2.9e-9 in f32 (degree 10), 2.3e-19 in f64 (degree 24) before
// rounding. x^2 is taken in two parts, so the tail keeps its relative accuracy as far as it is a normal number; Phi(x)
// of positive x is 1 less the tail. Both tanh-free forms, silu and gelu_tanh, are x sigmoid(u): no cancellation for
// negative x.
#if defined(QKV_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_ACTIVATION_INL_H_
#undef QKV_ACTIVATION_INL_H_
#else
#define QKV_ACTIVATION_INL_H_
#endif

#include "kernels/exp-inl.h"
#include "qkv/kernels/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
struct TailConstants;

template <>
struct TailConstants<float> {
  static constexpr float kCentre = 4;
  static constexpr float kZero = 15;  // exp(-x^2 / 2) rounds to 0 before
  static constexpr uint32_t kHighBits = 0xFFFFF000u;
  static constexpr int kCount = 11;
  static constexpr float kCoefficients[kCount] = {0.755285130623f,     -0.607896659091f,  0.387137367999f,
                                                  -0.186521281403f,    0.0603975330878f,  -0.00754526826572f,
                                                  -0.00348931727612f,  0.00164521929736f, 0.000171054611587f,
                                                  -0.000231798678342f, -5.15565932986e-5f};
};

template <>
struct TailConstants<double> {
  static constexpr double kCentre = 6;
  static constexpr double kZero = 39;
  static constexpr uint64_t kHighBits = 0xFFFFFFFFF8000000u;
  static constexpr int kCount = 25;
  static constexpr double kCoefficients[kCount] = {
      0.777351771893362242,      -0.70100902959086564,   0.568968891814783384,     -0.413903585775582228,
      0.267974245841673453,      -0.152680232064795557,  0.0751719156685319856,    -0.0309853155025559511,
      0.0100298206458805106,     -0.0021316052555457759, 0.0000328699756553915739, 0.000181360656996351865,
      -0.0000647517669092853484, 1.07483834985656667e-6, 6.79554741637559266e-6,   -1.79831617321784662e-6,
      -4.27739698115891425e-7,   3.09170608488053492e-7, 5.19845836291070133e-9,   -4.332816828498267e-8,
      3.55879907777043412e-9,    6.11865517170078326e-9, -3.2278174995714443e-10,  -7.55661881294395543e-10,
      -1.19910235322293338e-10};
};

/// exp(-x^2 / 2) for x in [0, kZero] or NaN. The high bits of x have an exact square, so the square's rounding error
/// comes out without a fused operation.
template <class T>
HWY_INLINE Vector<T> ExpOfHalfSquare(Vector<T> x) {
  const Tag<T> d;
  const hn::RebindToUnsigned<Tag<T>> du;
  const auto high = hn::BitCast(d, hn::And(hn::BitCast(du, x), hn::Set(du, TailConstants<T>::kHighBits)));
  const auto low = hn::Sub(x, high);
  const auto square = hn::Mul(x, x);
  const auto cross = hn::Mul(hn::Set(d, T{2}), hn::Mul(high, low));
  const auto rest = hn::Add(hn::Add(hn::Sub(hn::Mul(high, high), square), cross), hn::Mul(low, low));
  const auto e = ExpNonPositive<T>(hn::Mul(square, hn::Set(d, T{-0.5})));
  return hn::NegMulAdd(hn::Mul(e, hn::Set(d, T{0.5})), rest, e);
}

/// Phi(x), and in `density` exp(-x^2 / 2).
template <class T>
HWY_INLINE Vector<T> NormalDistribution(Vector<T> x, Vector<T>& density) {
  using C = TailConstants<T>;
  const Tag<T> d;
  const auto one = hn::Set(d, T{1});
  const auto limit = hn::Set(d, C::kZero);
  auto magnitude = hn::Abs(x);
  magnitude = hn::IfThenElse(hn::Gt(magnitude, limit), limit, magnitude);  // NaN stays
  density = ExpOfHalfSquare<T>(magnitude);
  const auto w = hn::Div(one, hn::Add(magnitude, hn::Set(d, C::kCentre)));
  const auto t = hn::Mul(hn::Sub(magnitude, hn::Set(d, C::kCentre)), w);
  auto p = hn::Set(d, C::kCoefficients[C::kCount - 1]);
#pragma GCC unroll 32
  for (int i = C::kCount - 2; i >= 0; --i) p = hn::MulAdd(p, t, hn::Set(d, C::kCoefficients[i]));
  const auto tail = hn::Mul(hn::Mul(density, w), p);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
}

/// 1 / (1 + exp(-x)), and in `other` 1 less that, without cancellation.
template <class T>
HWY_INLINE Vector<T> Sigmoid(Vector<T> x, Vector<T>& other) {
  const Tag<T> d;
  const auto one = hn::Set(d, T{1});
  const auto e = ExpNonPositive<T>(hn::Neg(hn::Abs(x)));
  const auto inverse = hn::Div(one, hn::Add(one, e));
  const auto small = hn::Mul(e, inverse);
  const auto is_negative = hn::Lt(x, hn::Zero(d));
  other = hn::IfThenElse(is_negative, inverse, small);
  return hn::IfThenElse(is_negative, small, inverse);
}

/// activation(x), and its derivative when `D` is set.
template <Activation A, bool D, class T>
HWY_INLINE Vector<T> Activate(Vector<T> x, Vector<T>& derivative) {
  const Tag<T> d;
  const auto one = hn::Set(d, T{1});
  if constexpr (A == Activation::relu) {
    const auto is_negative = hn::Lt(x, hn::Zero(d));
    if constexpr (D) derivative = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), one, hn::Sub(x, x));  // 0; NaN of NaN
    return hn::IfThenElse(is_negative, hn::Zero(d), x);
  } else if constexpr (A == Activation::gelu) {
    constexpr T kInverseRoot2Pi = static_cast<T>(0.398942280401432677940);
    Vector<T> density;
    const auto phi = NormalDistribution<T>(x, density);
    if constexpr (D) derivative = hn::MulAdd(hn::Mul(x, hn::Set(d, kInverseRoot2Pi)), density, phi);
    return hn::Mul(x, phi);
  } else if constexpr (A == Activation::gelu_tanh) {
    constexpr T kTwoRoot = static_cast<T>(1.59576912160573071176);  // 2 sqrt(2 / pi)
    constexpr T kCubic = static_cast<T>(0.044715);
    const auto square = hn::Mul(x, x);
    const auto u = hn::Mul(hn::Mul(x, hn::Set(d, kTwoRoot)), hn::MulAdd(square, hn::Set(d, kCubic), one));
    Vector<T> other;
    const auto s = Sigmoid<T>(u, other);
    if constexpr (D) {
      const auto slope = hn::MulAdd(square, hn::Set(d, 3 * kCubic * kTwoRoot), hn::Set(d, kTwoRoot));
      derivative = hn::MulAdd(hn::Mul(s, other), hn::Mul(x, slope), s);
    }
    return hn::Mul(x, s);
  } else if constexpr (A == Activation::silu) {
    Vector<T> other;
    const auto s = Sigmoid<T>(x, other);
    if constexpr (D) derivative = hn::MulAdd(hn::Mul(s, other), x, s);
    return hn::Mul(x, s);
  } else {
    if constexpr (D) derivative = one;
    return x;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_ACTIVATION_INL_H_
