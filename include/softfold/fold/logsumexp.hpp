// The fold behind softmax: (m, d), the largest integer exponent and the sum of 2^(t - m).
// This file has the only rescale in the tree.
#pragma once

#include "softfold/fold/exp2.hpp"
#include "softfold/fold/fold.hpp"

namespace softfold {
inline namespace v0 {
namespace fold {

/// The factor on the inputs, in the forms the arithmetic needs. `value` is the caller's scale (a temperature's
/// inverse).
template <class T>
struct Scale {
  double value;  ///< scale
  T c;           ///< scale * log2(e), rounded once

  /// Whether c is 0 or subnormal, so that every |t| < 4.
  SOFTFOLD_HD bool is_faint() const { return exponent() == 0; }
  /// What a caller's own scale must be (scales that are data may be anything): c is finite, and normal unless scale is
  /// 0. Looks at bits, so that a scale which the environment takes for 0 is none.
  SOFTFOLD_HD bool is_regular() const {
    if (exponent() == Real<T>::kInfinity) return false;
    return !is_faint() || (bits_as<std::uint64_t>(value) << 1) == 0;
  }

  /// ln(2) as seen through the rounded c: kappa = scale / c, in two parts, cancels c's rounding error. A faint c has
  /// next to no digits: there the quotient would be far from ln(2), by which the exponent of d is multiplied too.
  SOFTFOLD_HD double kappa() const { return is_faint() ? kLn2 : value / static_cast<double>(c); }
  SOFTFOLD_HD double kappa_low() const {
    return is_faint() ? 0. : Scalar<double>::fma(-kappa(), static_cast<double>(c), value) / static_cast<double>(c);
  }
  /// Both parts, for whoever finishes many rows: they cost two divisions.
  struct Kappa {
    double high, low;
  };
  SOFTFOLD_HD Kappa kappas() const { return {kappa(), kappa_low()}; }

 private:
  using Bits = typename Real<T>::Bits;
  SOFTFOLD_HD Bits exponent() const { return bits_as<Bits>(c) & Bits{Real<T>::kInfinity}; }
};

template <class T>
SOFTFOLD_HD Scale<T> make_scale(double scale) {
  if constexpr (sizeof(T) == 4) {
    const T c = static_cast<T>(scale * kLog2E);
    // A scale too small for T is not 0: an infinity times it is still an infinity.
    constexpr auto least = typename Real<T>::Bits{1};
    if (c == T(0) && scale != 0) return {scale, scale > 0 ? bits_as<T>(least) : -bits_as<T>(least)};
    return {scale, c};
  } else {
    return {scale, Scalar<double>::fma(scale, kLog2E, Scalar<double>::mul(scale, kLog2ELow))};
  }
}

/// The log-sum-exp of a row, base 2 inside, natural outside (Milakov & Gimelshein 2018, with an integer shift).
///
/// A state (m, d) stands for d * 2^(kUnit * m). m = max n is an integer (double: half of one) held in float64;
/// d is at least 0.707 in its own frame (double from |t| = 2^53 on: 2^-257). The empty state is (-inf, 0); a row that
/// holds +inf is (+inf, 1); one that holds NaN is (+inf, NaN). m is never NaN.
template <class T>
struct LogSumExp {
  using Element = T;
  struct State {
    double m;
    T d;
  };

  Scale<T> scale;

  SOFTFOLD_HD static State identity() { return {-infinity<double>(), T(0)}; }
  SOFTFOLD_HD static State plus_infinity() { return {infinity<double>(), T(1)}; }
  SOFTFOLD_HD static State not_a_number() { return {infinity<double>(), canonical_nan<T>()}; }

  /// 2^(kUnit * (from - to)), exact, and 0 where what it multiplies cannot count. from = -inf gives 0.
  SOFTFOLD_HD static T factor(double from, double to) {
    const double k = Real<T>::kUnit * (from - to);
    if (!(k >= static_cast<double>(Real<T>::kFlush))) return T(0);
    return Scalar<T>::times_power_of_two(T(1), static_cast<T>(k));
  }

  /// Two exact rescales and one rounded addition.
  SOFTFOLD_HD static State merge(const State& a, const State& b) {
    const double m = a.m > b.m ? a.m : b.m;
    if (m == infinity<double>()) return is_nan(a.d) || is_nan(b.d) ? not_a_number() : plus_infinity();
    return {m, Scalar<T>::add(Scalar<T>::mul(a.d, factor(a.m, m)), Scalar<T>::mul(b.d, factor(b.m, m)))};
  }

  /// The state of one element.
  SOFTFOLD_HD State lift(T x) const {
    if (is_nan(x)) return not_a_number();
    if (::fabs(x) == infinity<T>()) {
      if (scale.c == T(0)) return not_a_number();
      return (x > T(0)) == (scale.c > T(0)) ? plus_infinity() : identity();
    }
    const double m = frame(x, scale.c).m;
    return {m, is_fast(m) ? term<Scalar<T>>(x, scale.c, narrow(m)) : term_wide(x, scale.c, m)};
  }

  SOFTFOLD_HD State push(const State& s, T x) const { return merge(s, lift(x)); }

  /// Whether a row or a part of one holds numbers, and neither NaN nor +inf.
  SOFTFOLD_HD static bool is_regular(const State& s) { return s.m != infinity<double>() && s.d > T(0); }

  /// Whether x can be in a row of state s: no element lies above its row's frame.
  SOFTFOLD_HD bool covers(const State& s, T x) const { return lift(x).m <= s.m; }

  /// Whether (m, d) is a state that at most `elements` numbers can have; d is given as it may be stored, in double.
  SOFTFOLD_HD static bool is_state(double m, double d, double elements = 0x1p63) {
    if (m == infinity<double>()) return d == 1. || is_nan(d);
    if (m == -infinity<double>()) return d == 0.;
    const double n = m * Real<T>::kUnit;
    if (is_nan(m) || (::fabs(n) < infinity<double>() && n != ::rint(n))) return false;
    // The wide split of double may leave the largest element 2^-256.5 in its own frame, and others 2^256 above that.
    const bool wide = sizeof(T) == 8 && !is_fast(m);
    if (!(d >= (wide ? 0x1p-257 : 0.7)) || !(d <= (wide ? largest<double>() : 1.5 * elements))) return false;
    return static_cast<double>(static_cast<T>(d)) == d;
  }

  /// The natural logarithm of the sum of exp(scale * x). A row of finite numbers has a finite one: beyond the largest
  /// T it is that, for an infinity would say that the row is empty, or that it holds one.
  SOFTFOLD_HD T finish(const State& s) const { return finish(s, scale.kappas()); }
  SOFTFOLD_HD static T finish(const State& s, const typename Scale<T>::Kappa& kappa) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 4) {
      const double near = near_log_sum(s, kappa.high);
      if (is_plain(s) && NearLog::tells(near)) return static_cast<T>(near);
    }
#endif
    const double lse = log_sum(s, kappa), most = static_cast<double>(largest<T>());
    if (lse > most && lse < infinity<double>()) return largest<T>();
    if (lse < -most && lse > -infinity<double>()) return -largest<T>();
    return static_cast<T>(lse);
  }

  /// finish() before it is rounded to T.
  SOFTFOLD_HD double log_sum(const State& s) const { return log_sum(s, scale.kappas()); }
  SOFTFOLD_HD static double log_sum(const State& s, const typename Scale<T>::Kappa& kappa) {
    if (s.m == infinity<double>()) return is_nan(s.d) ? canonical_nan<double>() : s.m;
    if (!(s.d > T(0))) return -infinity<double>();
    const Binade b = binade_of(static_cast<double>(s.d));
    const double unit = Real<T>::kUnit;
    const double high = unit * kappa.high;
    // ln(d * 2^(unit*m)) = kappa * unit * (k + r) + ln g; r is what k's rounding lost, 0 for |m| < 2^51.
    const double k = s.m + b.e / unit;
    const double r = (s.m - k) + b.e / unit;
    const double rest = Scalar<double>::fma(r, high, ln(b.g));
    const double lse = Scalar<double>::fma(k, high, Scalar<double>::fma(k, unit * kappa.low, rest));
    const auto most = largest<double>();
    return lse > most ? most : lse < -most ? -most : lse;  // finite inputs have a finite answer
  }

  /// Whether the state is of a row of numbers in a fast frame.
  SOFTFOLD_HD static bool is_plain(const State& s) {
    constexpr auto least = typename Real<T>::Bits{1} << Real<T>::kMantissaBits;
    return ::fabs(s.m) <= -static_cast<double>(Real<T>::kFastLowest) &&
           bits_as<typename Real<T>::Bits>(s.d) - least < Real<T>::kInfinity - least;
  }
  /// log_sum() of such a row of floats, right to 2^-40 of itself; high: of kappa. The GPU asks for no more where that
  /// tells how the result is rounded.
  SOFTFOLD_HD static double near_log_sum(const State& s, double high) {
    static_assert(sizeof(T) == 4);
    const NearLog log(s.d);
    return Scalar<double>::fma(s.m + log.e, high, log.ln);
  }

  /// A frame is a value of State::m. This is the frame of the largest element (of the smallest when c < 0), finite.
  struct Frame {
    double m;
    bool fast;  ///< the fast split is exact in this frame
  };
  SOFTFOLD_HD static Frame frame(T x, T c) {
    const T n = split<Scalar<T>>(x, c).n;
    if (n >= Real<T>::kFastLowest && n <= Real<T>::kFastHighest) return {static_cast<double>(n) / Real<T>::kUnit, true};
    return {split_wide(x, c).n, false};
  }
  SOFTFOLD_HD static bool is_fast(double m) {
    const double n = m * Real<T>::kUnit;
    return n >= static_cast<double>(Real<T>::kFastLowest) && n <= static_cast<double>(Real<T>::kFastHighest);
  }
  /// A fast frame as the T that term() subtracts.
  SOFTFOLD_HD static T narrow(double m) { return static_cast<T>(m * Real<T>::kUnit); }
};

/// How one row's probabilities are written, once its state is known: y = term * multiplier, or nothing but one value.
template <class T>
struct Normaliser {
  using Lse = LogSumExp<T>;
  double m;      ///< the row's frame
  T reciprocal;  ///< rn(1/d)
  bool regular;  ///< false: every element of the row is the same special value (an empty row, +inf or NaN inside)
  bool empty;    ///< nothing in the row: what is written is the caller's choice (Empty)

  SOFTFOLD_HD explicit Normaliser(const typename Lse::State& s)
      : m(s.m), reciprocal(0), regular(Lse::is_regular(s)), empty(s.m == -infinity<double>()) {
    if (regular) reciprocal = Scalar<T>::div(T(1), s.d);
  }

  /// What a term in the frame `from` (a chunk's, or the row's) is multiplied by. In a row whose m is not fast, `from`
  /// must be m itself: the terms of double's wide split are not bounded by their frame.
  SOFTFOLD_HD T multiplier(double from) const { return Scalar<T>::mul(reciprocal, Lse::factor(from, m)); }

  /// A term times its multiplier; below kSmallest it is +0, so no subnormal is ever written.
  SOFTFOLD_HD static T probability(T term, T multiplier) {
    const T y = Scalar<T>::mul(term, multiplier);
    return y < Real<T>::kSmallest ? T(0) : y;
  }
  /// The least term whose probability is not +0. Loops leave out what is below it before they multiply: a product that
  /// is a subnormal number costs many processors a hundred cycles.
  SOFTFOLD_HD static T least_term(T multiplier) {
    using Bits = typename Real<T>::Bits;
    const auto is_written = [=](T term) { return Scalar<T>::mul(term, multiplier) >= Real<T>::kSmallest; };
    // The quotient's own rounding puts it at most one number off.
    const T t = Scalar<T>::div(Real<T>::kSmallest, multiplier);
    const T below = bits_as<T>(static_cast<Bits>(bits_as<Bits>(t) - 1));
    if (t > T(0) && t < infinity<T>() && !is_written(t)) return bits_as<T>(static_cast<Bits>(bits_as<Bits>(t) + 1));
    return t > T(0) && is_written(below) ? below : t;
  }
};

/// How one row's log-probabilities are written: min(0, kappa * ((t - m) - log2 d)), never x - lse. All but kappa is
/// held halved: t - m would overflow where kappa (ln 2) brings the result back into range. (Not for a faint c: half of
/// it would lose its last digit, and nothing overflows.)
template <class T>
struct LogNormaliser {
  using Lse = LogSumExp<T>;
  double m;
  bool fast, regular, empty;
  T c, half_c, half_frame, half_log2_d, two_kappa;
  double exponent;  ///< what the exact integers of a row outside the fast range take over of log2 d

  /// near: log2 d of a float by NearLog where that tells how it is rounded, for fewer operations that wait for each
  /// other; the same numbers.
  SOFTFOLD_HD LogNormaliser(const typename Lse::State& s, const Scale<T>& scale, bool near = false)
      : m(s.m),
        fast(Lse::is_fast(s.m)),
        regular(Lse::is_regular(s)),
        empty(s.m == -infinity<double>()),
        c(0),
        half_c(0),
        half_frame(0),
        half_log2_d(0),
        two_kappa(static_cast<T>(scale.kappa())),
        exponent(0) {
    const bool faint = scale.is_faint();
    if (!faint) two_kappa *= T(2);
    set_c(scale.c);
    if (!regular) return;
    const T half = faint ? T(1) : T(0.5);
    if (fast) half_frame = half * Lse::narrow(s.m);
    if constexpr (sizeof(T) == 4) {
      if (near) {
        const NearLog log(s.d);
        const double log2_d = Scalar<double>::fma(log.ln, kLog2E, log.e);
        half_log2_d = half * static_cast<T>(log2_d);
        if (Lse::is_plain(s) && NearLog::tells(log2_d)) return;
      }
    }
    const Binade b = binade_of(static_cast<double>(s.d));
    if (!fast) exponent = b.e;
    half_log2_d = static_cast<T>(Scalar<double>::mul(half, Scalar<double>::fma(ln(b.g), kLog2E, fast ? b.e : 0.)));
  }

  /// two_kappa of all rows of a scale, which takes a division in double.
  static SOFTFOLD_HD T two_kappa_of(const Scale<T>& scale) { return LogNormaliser(Lse::identity(), scale).two_kappa; }

  /// The c of elements that have been brought to another one (its magnitude, for elements negated where c < 0).
  SOFTFOLD_HD void set_c(T to) {
    c = to;
    half_c = Scale<T>{0, to}.is_faint() ? to : Scalar<T>::mul(T(0.5), to);
  }

  /// (t - m) / 2 with one rounding (outside the fast range: less `exponent`); t = -inf gives -inf.
  SOFTFOLD_HD T half_distance(T x) const {
    if (fast) return Scalar<T>::fma(x, half_c, -half_frame);
    if (::fabs(x) == infinity<T>()) return -infinity<T>();
    const auto s = split_wide(x, c);
    const double whole = 0.5 * Real<T>::kUnit * (s.n - m) + 0.5 * (s.j - exponent);
    return static_cast<T>(whole + 0.5 * static_cast<double>(s.f));
  }

  SOFTFOLD_HD T log_probability(T x) const {
    const T lp = Scalar<T>::mul(two_kappa, Scalar<T>::sub(half_distance(x), half_log2_d));
    // nvcc makes one minimum of the choice, and -0 of it where lp is -0; adding +0 makes it +0 again, as elsewhere.
    return Scalar<T>::add(lp < T(0) ? lp : T(0), T(0));
  }
};

/// A plain sum, for gradients: signed, so what is missing is -0.
template <class T>
struct Sum {
  using Element = T;
  using State = T;
  SOFTFOLD_HD static State identity() { return -T(0); }
  SOFTFOLD_HD static State merge(State a, State b) { return Scalar<T>::add(a, b); }
  SOFTFOLD_HD State push(State s, T x) const { return merge(s, x); }
  SOFTFOLD_HD T finish(State s) const { return s; }
};

}  // namespace fold
}  // namespace v0
}  // namespace softfold
