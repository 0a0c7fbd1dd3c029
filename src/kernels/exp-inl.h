// SPDX-License-Identifier: Apache-2.0
// exp and tanh on vectors of float or double, for every instruction set.
//
// exp(x) = 2^n exp(r), n = round(x / ln 2), r = x - n ln 2 with ln 2 in two parts (Cody and Waite), and
// exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / 2, p interpolated in Chebyshev nodes: relative error 1.1e-8 in f32 (degree
// 4), 2.3e-19 in f64 (degree 10) before rounding. Results below the normal range are rounded once to subnormals; NaN
// stays NaN.
#if defined(QKV_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_EXP_INL_H_
#undef QKV_EXP_INL_H_
#else
#define QKV_EXP_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr int kMantissa = 23;
  static constexpr int32_t kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  static constexpr float kLog2e = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // 16 bits: n * high is exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kNormal = -87.0f;  // the result is normal from here
  static constexpr float kZero = -104.0f;   // and rounds to 0 below this
  static constexpr int kCount = 5;
  static constexpr float kCoefficients[kCount] = {0.5f, 0.16666576989698776f, 0.041666554617204574f,
                                                  0.0083631790527225774f, 0.0013926183587713495f};
  static constexpr float kTanhSmall = 0.625f;
};

template <>
struct ExpConstants<double> {
  static constexpr int kMantissa = 52;
  static constexpr int64_t kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLog2e = 1.4426950408889634074;
  static constexpr double kLn2High = 0.6931471804855391383;  // 32 bits
  static constexpr double kLn2Low = 7.4406171100123967e-11;
  static constexpr double kNormal = -708.0;
  static constexpr double kZero = -746.0;
  static constexpr int kCount = 11;
  static constexpr double kCoefficients[kCount] = {
      0.5,
      0.16666666666666670991,
      0.041666666666666669755,
      0.0083333333333261351258,
      0.0013888888888883748305,
      0.00019841269874820625271,
      0.000024801587325547741216,
      2.755725540020642443e-6,
      2.7557273643110295328e-7,
      2.5105217004720745164e-8,
      2.0914686968086877233e-9,
  };
  static constexpr double kTanhSmall = 0.625;
};

/// 2^n of signed integer lanes, n in the normal range.
template <class T, class V>
HWY_INLINE Vector<T> PowerOfTwo(V n) {
  using C = ExpConstants<T>;
  const hn::RebindToSigned<Tag<T>> di;
  return hn::BitCast(Tag<T>(), hn::ShiftLeft<C::kMantissa>(hn::Add(n, hn::Set(di, C::kBias))));
}

/// exp(x) for x <= 0, and up to a few units above for rounding.
template <class T>
HWY_INLINE Vector<T> ExpNonPositive(Vector<T> x) {
  using C = ExpConstants<T>;
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  const auto round = hn::Set(d, C::kRound);
  const auto shifted = hn::MulAdd(x, hn::Set(d, C::kLog2e), round);
  const auto n = hn::Sub(shifted, round);
  auto r = hn::NegMulAdd(n, hn::Set(d, C::kLn2High), x);
  r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), r);
  auto p = hn::Set(d, C::kCoefficients[C::kCount - 1]);
#pragma GCC unroll 16
  for (int i = C::kCount - 2; i >= 0; --i) p = hn::MulAdd(p, r, hn::Set(d, C::kCoefficients[i]));
  p = hn::MulAdd(p, r, hn::Set(d, T{1}));
  p = hn::MulAdd(p, r, hn::Set(d, T{1}));
  const auto exponent = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, round));
  const auto below = hn::Lt(x, hn::Set(d, C::kNormal));
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::And(below, hn::Gt(x, hn::Set(d, C::kZero)))))) {
    // 2^n in two halves: only the last product rounds, into the subnormals.
    const auto half = hn::ShiftRight<1>(exponent);
    const auto y = hn::Mul(hn::Mul(p, PowerOfTwo<T>(half)), PowerOfTwo<T>(hn::Sub(exponent, half)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::kZero)), y);
  }
  return hn::IfThenZeroElse(below, hn::Mul(p, PowerOfTwo<T>(exponent)));
}

/// (tanh(x) - x) / x^3 as a function of z = x^2 below 0.625^2: the approximations of Moshier's Cephes library.
HWY_INLINE Vector<float> TanhTail(Vector<float> z) {
  const Tag<float> d;
  auto p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1f));
  return hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1f));
}
HWY_INLINE Vector<double> TanhTail(Vector<double> z) {
  const Tag<double> d;
  auto p = hn::Set(d, -9.64399179425052238628e-1);
  p = hn::MulAdd(p, z, hn::Set(d, -9.92877231001918586564e1));
  p = hn::MulAdd(p, z, hn::Set(d, -1.61468768441708447952e3));
  auto q = hn::Add(z, hn::Set(d, 1.12811678491632931402e2));
  q = hn::MulAdd(q, z, hn::Set(d, 2.23548839060100448583e3));
  q = hn::MulAdd(q, z, hn::Set(d, 4.84406305325125486048e3));
  return hn::Div(p, q);
}

/// tanh(x) and, in `derivative`, 1 - tanh(x)^2 without cancellation for large |x|.
template <class T>
HWY_INLINE Vector<T> Tanh(Vector<T> x, Vector<T>& derivative) {
  const Tag<T> d;
  const auto one = hn::Set(d, T{1});
  const auto magnitude = hn::Abs(x);
  const auto e = ExpNonPositive<T>(hn::Mul(magnitude, hn::Set(d, T{-2})));
  const auto inverse = hn::Div(one, hn::Add(one, e));
  const auto large = hn::CopySign(hn::Mul(hn::Sub(one, e), inverse), x);
  const auto z = hn::Mul(x, x);
  const auto small = hn::MulAdd(hn::Mul(TanhTail(z), z), x, x);
  const auto is_small = hn::Lt(magnitude, hn::Set(d, ExpConstants<T>::kTanhSmall));
  const auto y = hn::IfThenElse(is_small, small, large);
  const auto far = hn::Mul(hn::Mul(hn::Set(d, T{4}), e), hn::Mul(inverse, inverse));
  derivative = hn::IfThenElse(is_small, hn::NegMulAdd(small, small, one), far);
  return y;
}

}  // namespace HWY_NAMESPACE
}  // namespace qkv
HWY_AFTER_NAMESPACE();

#endif  // QKV_EXP_INL_H_
