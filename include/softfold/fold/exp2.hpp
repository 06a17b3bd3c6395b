// The portable exp2 and natural logarithm: arithmetic only, so every machine with an FMA gives the same bits.
// Derivation and measured errors: docs/one-answer.md.
#pragma once

#include "softfold/fold/real.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

#include "softfold/fold/exp2-inl.hpp"

/// t = x*c for any finite t, also where the fast split has no bits left: t = kUnit*n + j + f.
template <class T>
struct WideSplit {
  double n;
  double j;
  T f;
};

/// float: x*c is exact in double, and so are n and f.
SOFTFOLD_HD WideSplit<float> split_wide(float x, float c) {
  const double t = static_cast<double>(x) * static_cast<double>(c);
  const double n = ::rint(t);
  return {n, 0., static_cast<float>(t - n)};
}

/// double: half of t as a product p and its error e (TwoProduct); halved, so that DBL_MAX * log2(e) does not overflow.
/// Below |t| = 2^53, n + f/2 is the same split as the fast one, f to the bit, so a row may mix the two. Above, the
/// integers are coarser than 1 and j is what p's rounding took from t. From |t| = 2^61 on, j shrinks in proportion to
/// stay within 256: distinct elements that round to one p then still differ by more than 2^127.
SOFTFOLD_HD WideSplit<double> split_wide(double x, double c) {
  using A = Scalar<double>;
  const double h = A::mul(0.5, c);
  const double p = A::mul(x, h);
  const double size = ::fabs(p);
  // A finite x whose product overflows stays finite, so that it is never taken for an infinite one.
  if (size == infinity<double>()) return {::fabs(x) == size ? p : ::copysign(largest<double>(), p), 0., 0.};
  double e = A::fma(x, h, -p);
  if (size >= 0x1p60) e = A::mul(e, A::div(0x1p60, size));
  double n = p;
  if (size < 0x1p52) {
    n = 0.5 * ::rint(p + p);
    n += 0.5 * ::rint(2. * A::add(A::sub(p, n), e));
  }
  const double rest = 2. * A::add(A::sub(p, n), e);
  const double j = ::rint(rest);
  return {n, j, A::sub(rest, j)};
}

/// term() for a frame m (in State units) outside the fast range.
template <class T>
SOFTFOLD_HD T term_wide(T x, T c, double m) {
  const auto s = split_wide(x, c);
  const double k = Real<T>::kUnit * (s.n - m) + s.j;
  if (!(k >= static_cast<double>(Real<T>::kFlush))) return T(0);
  // In double, j can lift k above 0 by hundreds: multiply by 2^k, which is exact, instead of adding to an exponent.
  using Bits = typename Real<T>::Bits;
  constexpr auto one = Bits{Real<T>::kInfinity} >> (Real<T>::kMantissaBits + 1);  // the biased exponent of 1
  const auto power = static_cast<Bits>(one + exponent_step<T>(k));
  return Scalar<T>::mul(exp2_fraction<Scalar<T>>(s.f), bits_as<T>(static_cast<Bits>(power << Real<T>::kMantissaBits)));
}

/// A positive finite number taken apart: d = 2^e * g with g in [sqrt(1/2), sqrt(2)).
struct Binade {
  double g;
  double e;
};

SOFTFOLD_HD Binade binade_of(double d) {
  const auto bits = bits_as<std::uint64_t>(d);
  // Rounding the exponent at the bits of sqrt(2) instead of at 2 centres g around 1.
  const auto shifted = bits - 0x3FE6A09E667F3BCDULL;
  const auto e = static_cast<std::int64_t>(shifted) >> 52;
  return {bits_as<double>(bits - (static_cast<std::uint64_t>(e) << 52)), static_cast<double>(e)};
}

#if defined(__CUDA_ARCH__)
/// a / b rounded to nearest for b in [1, 4) and a that is 0 or at least 2^-53: what a division does for such numbers,
/// without the cases that it has to tell apart. (cuda_shortcuts.)
SOFTFOLD_HD double quotient_near_one(double a, double b) {
  using A = Scalar<double>;
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
  // The estimate has 20 bits, and no more than that for b = 2 - 2^-52: as 1/2, all that follows would keep it.
  r = bits_as<double>(bits_as<std::uint64_t>(r) | 1U);
  const double e = A::fma(-b, r, 1.);
  r = A::fma(r, A::fma(e, e, e), r);
  r = A::fma(r, A::fma(-b, r, 1.), r);
  const double q = A::mul(a, r);
  return A::fma(r, A::fma(-b, q, a), q);
}
#else
SOFTFOLD_HD double quotient_near_one(double a, double b) { return Scalar<double>::div(a, b); }
#endif

/// ln(g) for g in [sqrt(1/2), sqrt(2)), error <= 1.3 u, +0 at 1:  ln(1+f) = f - h + s (h + R), h = f^2/2, s = f/(2+f),
/// R = 2 (atanh(s)/s - 1) as a polynomial in s^2.
SOFTFOLD_HD double ln(double g) {
  using A = Scalar<double>;
  const double f = A::sub(g, 1.);
  const double s = quotient_near_one(f, A::add(g, 1.));
  const double z = A::mul(s, s);
  double p = A::fma(0x1.2f0251fe06040p-3, z, 0x1.39a20b97844cep-3);
  p = A::fma(p, z, 0x1.74663ba3d5331p-3);
  p = A::fma(p, z, 0x1.c71c521a16c3dp-3);
  p = A::fma(p, z, 0x1.24924941db4c0p-2);
  p = A::fma(p, z, 0x1.999999997ff63p-2);
  p = A::fma(p, z, 0x1.5555555555592p-1);
  const double h = A::mul(A::mul(0.5, f), f);
  return A::add(f, A::fma(s, A::fma(z, p, h), -h));
}

/// The logarithm of a positive normal float by half of the instructions of binade_of() and ln(), and without their
/// division: near enough to tell how a result that is stored as a float is rounded, hardly ever excepted. What is
/// stored is what ln() gives; docs/one-answer.md.
struct NearLog {
  double e;   ///< d = 2^e * g
  double ln;  ///< of g in [sqrt(1/2), sqrt(2)], right to 2^-40.5 of itself, +0 at 1

  SOFTFOLD_HD explicit NearLog(float d) {
    const auto bits = bits_as<std::uint32_t>(d);
    const auto power = static_cast<std::int32_t>(bits - 0x3F3504F4U) >> 23;
    e = static_cast<double>(power);
    ln = near_ln(bits_as<float>(bits - (static_cast<std::uint32_t>(power) << 23)));
  }

  /// Whether all numbers right to 2^-40 that are taken for v round to the same float, a normal one or 0.
  SOFTFOLD_HD static bool tells(double v) {
    constexpr std::uint32_t half = 1U << 28, most = 1U << 13;  // of the bits that a float has not
    return (static_cast<std::uint32_t>(bits_as<std::uint64_t>(v)) & (2 * half - 1)) - (half - most) > 2 * most;
  }

 private:
  /// 2 atanh(s) = s (2 + z p(z)), s = (g - 1) / (g + 1), z = s^2: what p's first two terms leave is small enough for
  /// float arithmetic.
  static SOFTFOLD_HD double near_ln(float g) {
    using A = Scalar<double>;
    using S = Scalar<float>;
    const float f = S::sub(g, 1.F), r = near_reciprocal(S::add(g, 1.F));
    const double exact_f = static_cast<double>(f), exact_r = static_cast<double>(r);
    const double quotient = A::mul(exact_f, exact_r), error = A::fma(-A::add(exact_f, 2.), exact_r, 1.);
    const double s = A::fma(quotient, error, quotient), z = A::mul(s, s);
    const float near_s = S::mul(f, r), near_z = S::mul(near_s, near_s);
    float rest = S::fma(0x1.8a98e4p-3F, near_z, 0x1.c69e42p-3F);
    rest = S::fma(rest, near_z, 0x1.2492bap-2F);
    double p = A::fma(static_cast<double>(rest), z, 2. / 5.);
    p = A::fma(p, z, 2. / 3.);
    return A::mul(s, A::fma(p, z, 2.));
  }
  /// To 2^-22 of itself.
  static SOFTFOLD_HD float near_reciprocal(float a) {
#if defined(__CUDA_ARCH__)
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
#else
    return 1.F / a;
#endif
  }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
