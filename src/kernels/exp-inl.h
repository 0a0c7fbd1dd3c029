// SPDX-License-Identifier: Apache-2.0
// exp and tanh on vectors of float or double, for every instruction set.
//
// exp(x) = 2^n exp(r), n = x / ln 2 rounded to a multiple of 1 / entries, r = x - n ln 2 with ln 2 in two parts (Cody
// and Waite), and exp(r) = 1 + r + r^2 p(r) on |r| <= ln 2 / (2 entries). The fraction of n is looked up in a table of
// 2^(i / entries), one vector of it, where vectors have 8 lanes or more; elsewhere n is an integer. p is interpolated
// in Chebyshev nodes; relative errors before rounding stand beside the coefficients. Results below the normal range are
// rounded to subnormals; NaN stays NaN.
//
// On Zen 4 the two pipes that multiply bound the forward pass: of the 15 instructions in f32 with 16 entries, 7 run
// there, and the polynomial without a table would need 10.
#if defined(QKV_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_EXP_INL_H_
#undef QKV_EXP_INL_H_
#else
#define QKV_EXP_INL_H_
#endif

#include <array>
#include <bit>
#include <iterator>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qkv {
namespace HWY_NAMESPACE {

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr int kMantissa = 23;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
  static constexpr float kLog2e = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // 16 bits: x - n * high is exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kNormal = -87.0f;  // the result is normal from here
  static constexpr float kZero = -104.0f;   // and rounds to 0 below this
  static constexpr float kTanhSmall = 0.625f;
};

template <>
struct ExpConstants<double> {
  static constexpr int kMantissa = 52;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLog2e = 1.4426950408889634074;
  static constexpr double kLn2High = 0.6931471804855391383;  // 32 bits
  static constexpr double kLn2Low = 7.4406171100123967e-11;
  static constexpr double kNormal = -708.0;
  static constexpr double kZero = -746.0;
  static constexpr double kTanhSmall = 0.625;
};

/// p and the table for one number of entries.
template <class T, int64_t kEntries>
struct ExpTable;

template <>
struct ExpTable<float, 1> {  // 1.0e-8
  static constexpr float kCoefficients[] = {0.5f, 0.16666576661f, 0.041666554213f, 0.0083632328837f, 0.0013926250832f};
  static constexpr float kPowers[] = {1.0f};
};
template <>
struct ExpTable<float, 8> {  // 3.3e-10
  static constexpr float kCoefficients[] = {0.5f, 0.16667842034f, 0.041668625596f};
  static constexpr float kPowers[] = {1.0f,          1.0905077327f, 1.1892071150f, 1.2968395547f,
                                      1.4142135624f, 1.5422108254f, 1.6817928305f, 1.8340080864f};
};
template <>
struct ExpTable<float, 16> {  // 4.7e-9
  static constexpr float kCoefficients[] = {0.50000979448f, 0.16666862556f};
  static constexpr float kPowers[] = {1.0f,          1.0442737824f, 1.0905077327f, 1.1387886348f,
                                      1.1892071150f, 1.2418578121f, 1.2968395547f, 1.3542555469f,
                                      1.4142135624f, 1.4768261459f, 1.5422108254f, 1.6104903319f,
                                      1.6817928305f, 1.7562521604f, 1.8340080864f, 1.9152065614f};
};
template <>
struct ExpTable<double, 1> {  // 2.3e-19
  static constexpr double kCoefficients[] = {0.5,
                                             0.1666666666666667103,
                                             0.041666666666666669783,
                                             0.0083333333333260831202,
                                             0.0013888888888883711167,
                                             0.00019841269875002278793,
                                             0.0000248015873256774619,
                                             2.7557255170000887438e-6,
                                             2.7557273478718580474e-7,
                                             2.5105312729622701787e-8,
                                             2.09147553258932022e-9};
  static constexpr double kPowers[] = {1.0};
};
template <>
struct ExpTable<double, 8> {  // 1.0e-17
  static constexpr double kCoefficients[] = {0.50000000000000515443,   0.16666666666666723938,
                                             0.041666666617329598929,  0.0083333333278514669999,
                                             0.0013889588505409305087, 0.00019842047189636849827};
  static constexpr double kPowers[] = {1.0,
                                       1.0905077326652576592,
                                       1.1892071150027210667,
                                       1.2968395546510096659,
                                       1.4142135623730950488,
                                       1.5422108254079408236,
                                       1.6817928305074290861,
                                       1.8340080864093424635};
};

/// Entries of the table: a whole vector of it, or none where a lookup would replace few steps of the polynomial.
template <class T>
constexpr int64_t kExpEntries = kLanes<T> >= 8 ? kLanes<T> : 1;

template <class T>
using LaneInteger = hn::TFromD<hn::RebindToSigned<Tag<T>>>;

/// Bits of 2^(i / entries), less the index where PowerOfTwo adds it.
template <class T>
constexpr auto MakePowerTable() {
  constexpr int kIndexBits = std::countr_zero(static_cast<uint64_t>(kExpEntries<T>));
  std::array<LaneInteger<T>, kExpEntries<T>> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = std::bit_cast<LaneInteger<T>>(ExpTable<T, kExpEntries<T>>::kPowers[i]) -
               (static_cast<LaneInteger<T>>(i) << (ExpConstants<T>::kMantissa - kIndexBits));
  }
  return table;
}

/// 2^(n + raise), normal, for lanes `bits` of n + kRound / entries: their low bits count n in parts of 1 / entries.
template <int kRaise, class T, class V>
HWY_INLINE Vector<T> PowerOfTwo(V bits) {
  constexpr int kIndexBits = std::countr_zero(static_cast<uint64_t>(kExpEntries<T>));
  constexpr LaneInteger<T> kRaised = LaneInteger<T>{kRaise} << ExpConstants<T>::kMantissa;
  HWY_ALIGN static constexpr auto kTable = MakePowerTable<T>();
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  // Whole parts of n end in the exponent, the index in the upper mantissa.
  auto power = hn::ShiftLeft<ExpConstants<T>::kMantissa - kIndexBits>(bits);
  if (kRaise != 0) power = hn::Add(power, hn::Set(di, kRaised));
  if constexpr (kExpEntries<T> == 1) {
    power = hn::Add(power, hn::Set(di, kTable[0]));
  } else {
    // The lookup reads the low bits of an index; only checks of debug builds want the others to be 0.
    const auto index = HWY_IS_DEBUG_BUILD ? hn::And(bits, hn::Set(di, kExpEntries<T> - 1)) : bits;
    power = hn::Add(power, hn::TableLookupLanes(hn::Load(di, kTable.data()), hn::IndicesFromVec(di, index)));
  }
  return hn::BitCast(d, power);
}

/// Each x becomes exp(x) 2^kRaise, where that is normal. Step by step for all of them: one is a chain of some 45 cycles
/// that fills a quarter of the scheduler, and several would wait for each other's first steps.
template <int kRaise, class T, int V>
HWY_INLINE void RaisedExps(Vector<T> (&x)[V]) {
  using C = ExpConstants<T>;
  constexpr auto& kCoefficients = ExpTable<T, kExpEntries<T>>::kCoefficients;
  constexpr int kCount = static_cast<int>(std::size(kCoefficients));
  const Tag<T> d;
  const hn::RebindToSigned<Tag<T>> di;
  const auto round = hn::Set(d, C::kRound / static_cast<T>(kExpEntries<T>));
  Vector<T> power[V], p[V];
#define QKV_EACH_VECTOR _Pragma("GCC unroll 16") for (int v = 0; v < V; ++v)
  QKV_EACH_VECTOR power[v] = hn::MulAdd(x[v], hn::Set(d, C::kLog2e), round);
  QKV_EACH_VECTOR p[v] = hn::Sub(power[v], round);
  QKV_EACH_VECTOR x[v] = hn::NegMulAdd(p[v], hn::Set(d, C::kLn2High), x[v]);
  QKV_EACH_VECTOR x[v] = hn::NegMulAdd(p[v], hn::Set(d, C::kLn2Low), x[v]);
  QKV_EACH_VECTOR p[v] = hn::Set(d, kCoefficients[kCount - 1]);
#pragma GCC unroll 16
  for (int i = kCount - 2; i >= 0; --i) {
    QKV_EACH_VECTOR p[v] = hn::MulAdd(p[v], x[v], hn::Set(d, kCoefficients[i]));
  }
  QKV_EACH_VECTOR p[v] = hn::MulAdd(p[v], x[v], hn::Set(d, T{1}));
  QKV_EACH_VECTOR power[v] = PowerOfTwo<kRaise, T>(hn::BitCast(di, power[v]));
  QKV_EACH_VECTOR p[v] = hn::Mul(p[v], x[v]);
  QKV_EACH_VECTOR x[v] = hn::MulAdd(power[v], p[v], power[v]);
#undef QKV_EACH_VECTOR
}

template <int kRaise, class T>
HWY_INLINE Vector<T> RaisedExp(Vector<T> x) {
  Vector<T> y[1] = {x};
  RaisedExps<kRaise, T>(y);
  return y[0];
}

/// exp(x) for x in [kNormal, 0], and up to a few units above for rounding; NaN of NaN.
template <class T>
HWY_INLINE Vector<T> ExpNormal(Vector<T> x) {
  return RaisedExp<0, T>(x);
}

/// exp(x) for x <= 0, and up to a few units above: the bits of ExpNormal where that is defined.
template <class T>
HWY_INLINE Vector<T> ExpNonPositive(Vector<T> x) {
  const Tag<T> d;
  // 2^64 keeps everything normal, and only taking it back rounds, into the subnormals.
  const auto y = hn::Mul(RaisedExp<64, T>(x), hn::Set(d, T{0x1p-64}));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, ExpConstants<T>::kZero)), y);
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
