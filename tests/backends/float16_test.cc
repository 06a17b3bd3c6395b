// Every float16 and bfloat16 value through both conversions, and every place where rounding decides.
#include "softfold/fold/float16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using softfold::fold::BFloat16;
using softfold::fold::Float16;
using softfold::fold::round_to_half;
using softfold::fold::widen;

/// The value of a pattern by the format's definition, in double (exact for both).
template <class S>
double value_of(std::uint16_t bits) {
  const int magnitude = bits & 0x7FFF;
  const int exponent = magnitude >> S::kMantissaBits;
  const int fraction = magnitude & ((1 << S::kMantissaBits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1. : 1.;
  if (magnitude > S::kInfinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == S::kInfinity) return sign * std::numeric_limits<double>::infinity();
  const int hidden = exponent == 0 ? 0 : 1 << S::kMantissaBits;
  return sign * std::ldexp(hidden + fraction, (exponent == 0 ? 1 : exponent) - S::kBias - S::kMantissaBits);
}

template <class S>
class HalfTest : public testing::Test {};
using Halves = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryValueWidensExactlyAndComesBack) {
  using S = TypeParam;
  for (unsigned i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double want = value_of<S>(bits);
    const float wide = widen(S{bits});
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_EQ(round_to_half<S>(wide).bits, S::kCanonicalNaN) << i;
      ASSERT_EQ(round_to_half<S>(static_cast<double>(wide)).bits, S::kCanonicalNaN) << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), want) << i;
    ASSERT_EQ(std::signbit(wide), std::signbit(want)) << i;
    ASSERT_EQ(round_to_half<S>(wide).bits, bits) << i;
    ASSERT_EQ(round_to_half<S>(want).bits, bits) << i;
  }
}

/// Between two neighbours: the half-way point goes to the even one, its neighbours in T to the nearer.
template <class S, class T>
void check_ties() {
  const T infinity = std::numeric_limits<T>::infinity();
  for (unsigned i = 0; i < S::kInfinity; ++i) {
    const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
    // Infinity rounds as if it were the number after the largest one.
    const double below = value_of<S>(low);
    const double above =
        high < S::kInfinity ? value_of<S>(high) : 2 * below - value_of<S>(static_cast<std::uint16_t>(i - 1));
    const T middle = static_cast<T>((below + above) / 2);
    const auto even = i % 2 == 0 ? low : high;
    for (const int sign : {0, 0x8000}) {
      const T s = sign != 0 ? T(-1) : T(1);
      ASSERT_EQ(round_to_half<S>(s * middle).bits, even | sign) << i;
      ASSERT_EQ(round_to_half<S>(s * std::nextafter(middle, T(0))).bits, low | sign) << i;
      ASSERT_EQ(round_to_half<S>(s * std::nextafter(middle, infinity)).bits, high | sign) << i;
    }
  }
}

TYPED_TEST(HalfTest, TiesGoToEven) {
  check_ties<TypeParam, float>();
  check_ties<TypeParam, double>();
}

TYPED_TEST(HalfTest, FarOutside) {
  using S = TypeParam;
  EXPECT_EQ(round_to_half<S>(std::numeric_limits<double>::max()).bits, S::kInfinity);
  EXPECT_EQ(round_to_half<S>(std::numeric_limits<float>::max()).bits, S::kInfinity);
  EXPECT_EQ(round_to_half<S>(-std::numeric_limits<double>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(round_to_half<S>(std::numeric_limits<double>::min()).bits, 0);
  EXPECT_EQ(round_to_half<S>(-0.F).bits, 0x8000);
}

TEST(Narrow, DoubleIsRoundedOnce) {
  // Through float this would first become the tie 1 + 2^-11 and then 1.
  EXPECT_EQ(softfold::fold::narrow<Float16>(1. + 0x1p-11 + 0x1p-40).bits, 0x3C01);
  EXPECT_EQ(softfold::fold::narrow<BFloat16>(1. + 0x1p-8 + 0x1p-40).bits, 0x3F81);
}

TEST(Narrow, NansAreCanonical) {
  const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.);
  EXPECT_EQ(softfold::fold::bits_as<std::uint32_t>(softfold::fold::narrow<float>(nan)), 0x7FC00000U);
  EXPECT_EQ(softfold::fold::bits_as<std::uint64_t>(softfold::fold::narrow<double>(nan)), 0x7FF8000000000000U);
}

}  // namespace
