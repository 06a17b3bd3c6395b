// The portable exp2 on float32, where nothing need be sampled: every fraction that the polynomial can meet, and every
// finite float as an element of a row under c = 1; and ln of every float that a sum can leave. The maxima are the ones
// that docs/one-answer.md states.
#include "softfold/fold/logsumexp.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <thread>

namespace softfold {
namespace {

using fold::bits_as;

constexpr std::uint32_t kBinade = 1U << 23;  // the floats of one exponent
constexpr std::uint32_t kRun = 4096;         // floats that differ in their last 12 bits: equally spaced
constexpr double kUnit = 0x1p-24;

constexpr std::uint32_t kSign = 0x80000000U;
constexpr std::uint32_t kHalf = 0x3F000000U, kEight = 0x41000000U, kIntegers = 0x4B000000U, kInfinity = 0x7F800000U;

float exp2_fraction(float f) { return fold::exp2_fraction<fold::Scalar<float>>(f); }

double distance(float approximation, double truth) { return std::fabs(static_cast<double>(approximation) - truth); }

/// What a sweep over many floats found.
struct Sweep {
  double error = 0;        ///< largest relative error
  std::int64_t wrong = 0;  ///< how many had a split other than (nearest integer, exact rest)

  void see(double error_here, double truth) {
    if (error_here > error * truth) error = error_here / truth;
  }
};

/// Runs sweep(from) for each binade of [first, last), positive and negative at once, and returns both findings.
template <class F>
std::array<Sweep, 2> both_signs(std::uint32_t first, std::uint32_t last, F sweep) {
  std::array<Sweep, 2> all;
  const auto half = [&](Sweep& r, std::uint32_t sign) {
    for (std::uint32_t b = first; b < last; b += kBinade) sweep(r, b | sign);
  };
  std::thread negative([&] { half(all[1], kSign); });
  half(all[0], 0);
  negative.join();
  return all;
}

/// 2^x for the floats of a binade: 2^(i*step), which all runs of the binade share, times 2^first. One product an
/// element in place of one exp2; its own error is below 2^-51, a ten-millionth of what it measures.
class Growth {
 public:
  explicit Growth(std::uint32_t binade) {
    const double step = static_cast<double>(bits_as<float>(binade + 1)) - static_cast<double>(bits_as<float>(binade));
    for (std::uint32_t i = 0; i < kRun; ++i) power_[i] = std::exp2(step * i), inverse_[i] = std::exp2(-step * i);
  }
  double operator[](std::uint32_t i) const { return power_[i]; }
  double inverse(std::uint32_t i) const { return inverse_[i]; }

 private:
  std::array<double, kRun> power_{}, inverse_{};
};

TEST(Exp2Exhaustive, EveryFraction) {
  const auto found = both_signs(0, kHalf, [](Sweep& r, std::uint32_t binade) {
    const Growth growth(binade);
    for (std::uint32_t run = binade; run < binade + kBinade; run += kRun) {
      const double first = std::exp2(static_cast<double>(bits_as<float>(run)));
      double largest = 0;
      int wrong = 0;  // NaN too
#pragma omp simd reduction(max : largest) reduction(+ : wrong)
      for (std::uint32_t i = 0; i < kRun; ++i) {
        const double error = distance(exp2_fraction(bits_as<float>(run + i)), first * growth[i]) * growth.inverse(i);
        largest = largest < error ? error : largest;
        wrong += error < first ? 0 : 1;
      }
      r.see(largest, first);
      r.wrong += wrong;
    }
  });
  EXPECT_EQ(found[0].wrong + found[1].wrong, 0);
  EXPECT_NEAR(found[0].error / kUnit, 2.48624, 1e-5);
  EXPECT_NEAR(found[1].error / kUnit, 2.62467, 1e-5);
  EXPECT_LT(distance(exp2_fraction(0.5F), std::sqrt(2.)), 2.5 * kUnit);
  EXPECT_EQ(exp2_fraction(0.5F), 2 * exp2_fraction(-0.5F));
}

TEST(Exp2Exhaustive, EveryFloatBelowOneHalfIsItsOwnFraction) {
  const auto found = both_signs(0, kHalf, [](Sweep& r, std::uint32_t binade) {
    for (std::uint32_t b = binade; b < binade + kBinade; ++b) {
      const float x = bits_as<float>(b);
      const auto s = fold::split<fold::Scalar<float>>(x, 1.F);
      r.wrong += (s.n != 0) | (s.f != x);
    }
  });
  EXPECT_EQ(found[0].wrong + found[1].wrong, 0);
}

/// The state of every element that has both an integer and a fraction.
TEST(Exp2Exhaustive, EveryFloatFromOneHalfToTheIntegers) {
  const fold::LogSumExp<float> lse{fold::make_scale<float>(fold::kLn2)};
  ASSERT_EQ(lse.scale.c, 1.F);
  const auto near = both_signs(kHalf, kEight, [&](Sweep& r, std::uint32_t binade) {
    const Growth growth(binade);
    for (std::uint32_t run = binade; run < binade + kBinade; run += kRun) {
      const auto first = static_cast<double>(bits_as<float>(run));
      const double centre = std::rint(first);
      const double power = std::exp2(first - centre);
      for (std::uint32_t i = 0; i < kRun; ++i) {
        const float x = bits_as<float>(run + i);
        const auto s = lse.lift(x);
        // A run spans less than 1/2, so m is the run's centre or an integer beside it.
        const double truth = power * growth[i] * (s.m == centre ? 1. : s.m > centre ? 0.5 : 2.);
        r.see(distance(s.d, truth), truth);
        r.wrong += std::fabs(static_cast<double>(x) - s.m) > 0.5;
      }
    }
  });
  const auto far = both_signs(kEight, kIntegers, [&](Sweep& r, std::uint32_t binade) {
    for (std::uint32_t b = binade; b < binade + kBinade; ++b) {
      const auto s = lse.lift(bits_as<float>(b));
      const double rest = static_cast<double>(bits_as<float>(b)) - s.m;
      const double truth = std::exp2(rest);
      r.see(distance(s.d, truth), truth);
      r.wrong += std::fabs(rest) > 0.5;
    }
  });
  for (const auto& half : {near[0], near[1], far[0], far[1]}) {
    EXPECT_EQ(half.wrong, 0);
    EXPECT_GT(half.error / kUnit, 2.5);
    EXPECT_LT(half.error / kUnit, 2.62468);
  }
}

TEST(Exp2Exhaustive, EveryLargerFloatIsItsOwnInteger) {
  const auto found = both_signs(kIntegers, kInfinity, [](Sweep& r, std::uint32_t binade) {
    for (std::uint32_t b = binade; b < binade + kBinade; ++b) {
      const float x = bits_as<float>(b);
      const auto s = fold::split_wide(x, 1.F);
      r.wrong += (s.n != static_cast<double>(x)) | (s.j != 0) | (s.f != 0);
    }
  });
  EXPECT_EQ(found[0].wrong + found[1].wrong, 0);
}

/// ln is taken in double; of a float32 row it is of a float in [sqrt(1/2), sqrt(2)), one of 2^23.
TEST(LnExhaustive, EveryFloatOfAFloat32Sum) {
  constexpr std::uint32_t kLeast = 0x3F3504F4U;  // of the floats above sqrt(1/2)
  const auto of = [](std::uint32_t b) { return static_cast<double>(bits_as<float>(b)); };
  ASSERT_TRUE(of(kLeast - 1) < std::sqrt(0.5) && of(kLeast) > std::sqrt(0.5));
  ASSERT_TRUE(of(kLeast + kBinade - 1) < std::sqrt(2.) && of(kLeast + kBinade) > std::sqrt(2.));
  constexpr std::uint32_t kMiddle = kLeast + kBinade / 2;
  struct Worst {
    double own = 0, near = 0;
  };
  Worst worst[2];
  const auto sweep = [&](Worst& error, std::uint32_t first, std::uint32_t last) {
    Worst largest;
    for (std::uint32_t b = first; b < last; ++b) {
      const long double truth = std::log(static_cast<long double>(of(b)));
      if (truth == 0) continue;
      const auto relative = [=](double a) { return static_cast<double>(std::fabs((a - truth) / truth)); };
      largest.own = std::max(largest.own, relative(fold::ln(of(b))));
      largest.near = std::max(largest.near, relative(fold::NearLog(bits_as<float>(b)).ln));
    }
    error = largest;
  };
  std::thread upper([&] { sweep(worst[1], kMiddle, kLeast + kBinade); });
  sweep(worst[0], kLeast, kMiddle);
  upper.join();
  EXPECT_NEAR(worst[0].own / 0x1p-53, 1.1138, 1e-3);
  EXPECT_NEAR(worst[1].own / 0x1p-53, 1.1643, 1e-3);
  EXPECT_EQ(bits_as<std::uint64_t>(fold::ln(1.)), 0U);
  EXPECT_LT(worst[0].near, 0x1.2p-41);
  EXPECT_LT(worst[1].near, 0x1.2p-41);
  EXPECT_EQ(bits_as<std::uint64_t>(fold::NearLog(1.F).ln), 0U);
}

/// Numbers that a float's rounding takes for 2^-40 of themselves off a boundary are told, others are not.
TEST(LnExhaustive, WhatTellsHowAFloatIsRounded) {
  for (const float a : {1.F, 1.5F, 0x1.fffffep3F, 0x1p-30F, -0x1.234568p20F}) {
    const auto next = static_cast<double>(bits_as<float>(bits_as<std::uint32_t>(a) + 1));
    const auto boundary = static_cast<double>(a) + (next - static_cast<double>(a)) / 2;
    EXPECT_TRUE(fold::NearLog::tells(static_cast<double>(a)));
    for (const double off : {0., 0x1p-41, -0x1p-41, 0x1p-40, -0x1p-40})
      EXPECT_FALSE(fold::NearLog::tells(boundary * (1 + off))) << a << " " << off;
    for (const double off : {0x1p-38, -0x1p-38})
      EXPECT_TRUE(fold::NearLog::tells(boundary * (1 + off))) << a << " " << off;
  }
  EXPECT_TRUE(fold::NearLog::tells(0.));
}

}  // namespace
}  // namespace softfold
