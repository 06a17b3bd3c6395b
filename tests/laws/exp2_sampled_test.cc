// The float64 exp2 and ln against MPFR, on samples dense where they are worst; and the two splits, fast and wide,
// where both apply and where only the wide one does. The maxima are the ones that docs/one-answer.md states.
#include "softfold/lift/chunks.hpp"

#include <gtest/gtest.h>
#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>

namespace softfold {
namespace {

using fold::bits_as;

constexpr double kUnit = 0x1p-53;
constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1, kSqrtTwo = 0x1.6a09e667f3bcdp+0;

template <class T>
T exp2_fraction(T f) {
  return fold::exp2_fraction<fold::Scalar<T>>(f);
}

/// A function of one double to 160 bits, and how far an approximation is from it.
class Truth {
 public:
  using Function = int (*)(mpfr_t, const mpfr_t, mpfr_rnd_t);
  explicit Truth(Function f) : f_(f) { mpfr_inits2(160, x_, y_, nullptr); }
  ~Truth() { mpfr_clears(x_, y_, nullptr); }
  Truth(const Truth&) = delete;
  Truth& operator=(const Truth&) = delete;

  double relative_error(double x, double approximation) {
    mpfr_set_d(x_, x, MPFR_RNDN);
    f_(y_, x_, MPFR_RNDN);
    mpfr_sub_d(x_, y_, approximation, MPFR_RNDN);
    mpfr_div(x_, x_, y_, MPFR_RNDN);
    return std::fabs(mpfr_get_d(x_, MPFR_RNDN));
  }

 private:
  Function f_;
  mpfr_t x_, y_;
};

class Random {
 public:
  /// Uniform in [0, 1), 53 bits.
  double unit() { return std::ldexp(static_cast<double>(bits_() >> 11), -53); }
  double sign() { return bits_() & 1 ? 1. : -1.; }
  int below(int n) { return static_cast<int>(bits_() % static_cast<std::uint64_t>(n)); }
  /// A number of either sign with an exponent in [low, high) and a uniform mantissa.
  double log_uniform(int low, int high) { return sign() * std::ldexp(1 + unit(), low + below(high - low)); }

 private:
  std::mt19937_64 bits_{20240229};
};

TEST(Exp2Sampled, DoubleFraction) {
  Truth truth(mpfr_exp2);
  Random random;
  double worst = 0;
  const auto see = [&](double f) { worst = std::max(worst, truth.relative_error(f, exp2_fraction(f))); };
  for (int i = 0; i < 100000; ++i) {
    see(i * 5e-6);
    see(i * -5e-6);
    see(random.sign() * (0.5 - 0.004 * random.unit()));  // just above sqrt(1/2), where the largest errors are
  }
  see(0.5);
  see(-0.5);
  EXPECT_LT(worst / kUnit, 1.14);
  EXPECT_GT(worst / kUnit, 1.1);
  EXPECT_EQ(exp2_fraction(0.5), 2 * exp2_fraction(-0.5));
  EXPECT_EQ(exp2_fraction(0.), 1);
}

TEST(Exp2Sampled, Logarithm) {
  Truth truth(mpfr_log);
  Random random;
  double worst = 0;
  const auto see = [&](double g) {
    if (g != 1) worst = std::max(worst, truth.relative_error(g, fold::ln(g)));
  };
  double low = kSqrtHalf, high = kSqrtTwo, under = 1, over = 1;
  for (int i = 0; i < 30000; ++i) {
    see(low);
    see(high);
    see(under);
    see(over);
    low = std::nextafter(low, 1);
    high = std::nextafter(high, 1);
    under = std::nextafter(under, 0);
    over = std::nextafter(over, 2);
    see(kSqrtHalf + (kSqrtTwo - kSqrtHalf) * random.unit());
    see(1.26 + 0.05 * random.unit());  // ln just above 1/4, where the largest errors are
    see(1 + random.log_uniform(-52, -2));
  }
  EXPECT_LT(worst / kUnit, 1.3);
  EXPECT_GT(worst / kUnit, 1.2);
  EXPECT_EQ(fold::ln(1), 0);
  EXPECT_FALSE(std::signbit(fold::ln(1)));
}

TEST(Exp2Sampled, BinadeTakesApartExactly) {
  Random random;
  for (int i = 0; i < 100000; ++i) {
    const double d = std::fabs(random.log_uniform(-1022, 1024));
    const auto b = fold::binade_of(d);
    ASSERT_EQ(std::ldexp(b.g, static_cast<int>(b.e)), d);
    ASSERT_GE(b.g, std::nextafter(kSqrtHalf, 0));
    ASSERT_LE(b.g, kSqrtTwo);
  }
}

/// A row may mix frames of both kinds, so where both splits apply the terms must be the same to the bit.
template <class T>
void expect_fast_and_wide_agree(int lowest_exponent, int highest_exponent) {
  constexpr double unit = fold::Real<T>::kUnit;
  Random random;
  int compared = 0;
  for (int i = 0; i < 400000; ++i) {
    const T c = fold::make_scale<T>(random.log_uniform(-3, 3)).c;
    const T x = static_cast<T>(random.log_uniform(lowest_exponent, highest_exponent));
    const auto frame = fold::LogSumExp<T>::frame(x, c);
    if (!frame.fast) continue;
    ++compared;
    const auto fast = fold::split<fold::Scalar<T>>(x, c);
    const auto wide = fold::split_wide(x, c);
    // At a tie the two may choose different neighbours: the terms are equal all the same.
    if (std::fabs(fast.f) != T(0.5)) {
      ASSERT_EQ(unit * wide.n, static_cast<double>(fast.n)) << x << ' ' << c;
      ASSERT_EQ(wide.f, fast.f) << x << ' ' << c;
    }
    for (const double up : {0., 1., 40.}) {
      const double m = frame.m + up;
      if (!fold::LogSumExp<T>::is_fast(m)) continue;
      ASSERT_EQ(fold::term<fold::Scalar<T>>(x, c, fold::LogSumExp<T>::narrow(m)), fold::term_wide(x, c, m));
    }
  }
  EXPECT_GT(compared, 200000);
}

TEST(Splits, FastAndWideAgreeFloat) { expect_fast_and_wide_agree<float>(-10, 24); }
TEST(Splits, FastAndWideAgreeDouble) { expect_fast_and_wide_agree<double>(-10, 53); }

/// Exactly half way between two integers, from either side of the tie and in both precisions.
template <class T>
void expect_ties_do_not_matter() {
  for (int i = -1000; i <= 1000; ++i) {
    const T x = static_cast<T>(i) + T(0.5);
    const auto s = fold::split<fold::Scalar<T>>(x, T(1));
    ASSERT_EQ(std::fmod(s.n, T(2)), 0) << x;
    ASSERT_EQ(std::fabs(s.f), T(0.5)) << x;
    const T other = fold::Scalar<T>::times_power_of_two(exp2_fraction(-s.f), s.f > 0 ? T(1) : T(-1));
    ASSERT_EQ(exp2_fraction(s.f), other) << x;
  }
}

TEST(Splits, TiesDoNotMatterFloat) { expect_ties_do_not_matter<float>(); }
TEST(Splits, TiesDoNotMatterDouble) { expect_ties_do_not_matter<double>(); }

/// Neighbouring doubles whose scores differ by less than, by about, and by far more than one power of two: the ratio of
/// their terms against 2^(t - t') in MPFR, or simply "nothing" once it is far below one rounding of a sum.
TEST(Splits, WideKeepsNeighboursApart) {
  mpfr_t t, other;
  mpfr_inits2(2400, t, other, nullptr);
  Random random;
  double worst = 0, largest_when_far = 0;
  for (int i = 0; i < 40000; ++i) {
    const double c = fold::make_scale<double>(std::fabs(random.log_uniform(-4, 0))).c;
    const double x = random.log_uniform(i % 2 == 0 ? 50 : 64, i % 2 == 0 ? 64 : 1022);
    const double y = std::nextafter(x, -fold::infinity<double>());
    const double m = fold::split_wide(x, c).n;
    const double ratio = fold::term_wide(y, c, m) / fold::term_wide(x, c, m);
    mpfr_set_d(t, x, MPFR_RNDN);
    mpfr_mul_d(t, t, c, MPFR_RNDN);
    mpfr_set_d(other, y, MPFR_RNDN);
    mpfr_mul_d(other, other, c, MPFR_RNDN);
    mpfr_sub(t, other, t, MPFR_RNDN);
    const double gap = mpfr_get_d(t, MPFR_RNDN);
    if (gap < -127) {
      largest_when_far = std::max(largest_when_far, ratio);
    } else {
      mpfr_set_prec(other, 160);
      mpfr_exp2(other, t, MPFR_RNDN);
      worst = std::max(worst, std::fabs(ratio / mpfr_get_d(other, MPFR_RNDN) - 1));
      mpfr_set_prec(other, 2400);
    }
  }
  mpfr_clears(t, other, nullptr);
  EXPECT_LT(worst / kUnit, 6);  // two terms of 1.14 u, their rounded rests, two divisions
  EXPECT_LT(largest_when_far, 0x1p-120);
}

double log_sum(std::initializer_list<double> row, double scale) {
  const fold::LogSumExp<double> lse{fold::make_scale<double>(scale)};
  return lse.log_sum(lift::reduce_row(row.begin(), static_cast<std::int64_t>(row.size()), lse.scale.c));
}

TEST(Splits, LoneElementsReturnAsTheyCame) {
  Random random;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.log_uniform(30, 1023);
    const double allowed = (std::fabs(x) < 0x1p60 ? 1. : 2.) * kUnit * std::fabs(x) + 4 * kUnit;
    ASSERT_LE(std::fabs(log_sum({x}, 1) - x), allowed) << x;
  }
}

TEST(Splits, LargestDoublesHaveFiniteFrames) {
  const double top = std::numeric_limits<double>::max();
  for (const double scale : {1., 1.38, 4., 1e300}) {
    for (const double x : {top, -top}) {
      const fold::LogSumExp<double> lse{fold::make_scale<double>(scale)};
      const double row[] = {x, x};
      const auto s = lift::reduce_row(row, 2, lse.scale.c);
      EXPECT_TRUE(std::isfinite(s.m)) << scale << ' ' << x;
      EXPECT_EQ(s.d, 2 * lse.lift(x).d);
      EXPECT_EQ(lse.log_sum(s), scale == 1 ? x : std::copysign(std::min(top * scale, top), x));
    }
  }
}

}  // namespace
}  // namespace softfold
