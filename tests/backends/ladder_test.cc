// The first rungs of the ladder: safe and online within the bound that docs/accuracy.md states for them, on every SIMD
// target; naive too where it neither overflows nor vanishes, and NaN where it overflows.
#include "cpu/targets.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using softfold::DType;
using softfold::Rung;

template <class T>
constexpr DType kDType = sizeof(T) == 4 ? DType::float32 : DType::float64;

template <class T>
std::vector<T> softmax(const std::vector<T>& x, Rung rung, double scale = 1) {
  std::vector<T> y(x.size(), T(-7));
  const std::int64_t shape[] = {static_cast<std::int64_t>(x.size())};
  softfold::RowOptions options;
  options.rung = rung;
  options.scale = scale;
  softfold::softmax({x.data(), kDType<T>, shape}, {y.data(), kDType<T>, shape}, options);
  return y;
}

template <class T>
std::vector<T> waves(std::size_t n, T height, T offset) {
  std::vector<T> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = offset + height * std::sin(T(3) * static_cast<T>(i));
  return x;
}

/// Elements in a vector of the target in use: the lanes that each add up their own.
template <class T>
double lanes() {
  const auto target = softfold::cpu::current_target();
  const double bytes = target.starts_with("avx512") ? 64 : target == "avx2" ? 32 : target == "neon" ? 16 : sizeof(T);
  return bytes / sizeof(T);
}

/// The largest error of a probability, in u, beyond n/W + 2W + ln n + d_i.
template <class T>
double expect_within(const std::vector<T>& got, const std::vector<T>& x, double scale) {
  const auto u = static_cast<long double>(std::numeric_limits<T>::epsilon()) / 2, s = static_cast<long double>(scale);
  long double top = x[0], total = 0;
  for (const T v : x) top = std::max<long double>(top, v);
  for (const T v : x) total += std::exp(s * (v - top));
  const auto n = static_cast<double>(x.size());
  double worst = 0;
  int reported = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double distance = s * (top - x[i]), p = std::exp(-distance) / total;
    const auto error = static_cast<double>(std::abs(got[i] - p) / (p * u));
    const double bound = 8 + static_cast<double>(distance) + std::log(n) + n / lanes<T>() + 2 * lanes<T>();
    worst = std::max(worst, error);
    if (error > bound && ++reported <= 3) ADD_FAILURE() << i << ": " << error << " u, allowed " << bound;
  }
  return worst;
}

/// Calls f on every SIMD target of this machine.
template <class F>
void on_every_target(const F& f) {
  const std::string best(softfold::cpu::current_target());
  for (const auto target : softfold::cpu::targets()) {
    ASSERT_TRUE(softfold::cpu::use_target(target));
    SCOPED_TRACE(std::string(target));
    f();
  }
  ASSERT_TRUE(softfold::cpu::use_target(best));
}

template <class T>
void rungs_agree() {
  for (const std::size_t n : {1U, 2U, 7U, 16U, 31U, 1000U, 1024U, 1025U, 5000U}) {
    for (const double scale : {1., 0.25}) {
      const auto x = waves<T>(n, T(9), T(2));
      for (const Rung rung : {Rung::naive, Rung::safe, Rung::online}) {
        SCOPED_TRACE(std::to_string(n) + " rung " + std::to_string(static_cast<int>(rung)));
        expect_within(softmax(x, rung, scale), x, scale);
      }
    }
  }
}

TEST(Ladder, RungsAgreeInFloat32) { on_every_target(rungs_agree<float>); }
TEST(Ladder, RungsAgreeInFloat64) { on_every_target(rungs_agree<double>); }

// One lane adds n/W small terms to a large one, each sum losing half of its last bit: the contract's bound, which does
// not grow like n, is passed 700 times; theirs holds.
TEST(Ladder, TheirOrderCostsWhatIsSaid) {
  on_every_target([] {
    constexpr std::size_t n = std::size_t{1} << 20;
    std::vector<float> x(n, -25 * 0.693147181F);
    x[0] = 0;
    for (const Rung rung : {Rung::safe, Rung::online})
      EXPECT_GT(expect_within(softmax(x, rung), x, 1), 0.4 * static_cast<double>(n) / lanes<float>());
    EXPECT_LT(expect_within(softmax(x, Rung::automatic), x, 1), 8 + 2.5 * std::log(static_cast<double>(n)));
  });
}

TEST(Ladder, NaiveOverflowsWhereTheOthersDoNot) {
  const auto x = waves<float>(100, 1, 500);
  EXPECT_TRUE(std::isnan(softmax(x, Rung::naive)[0]));
  for (const Rung rung : {Rung::safe, Rung::online}) expect_within(softmax(x, rung), x, 1);
  // And not before it must: exp(88.7) is the last that float holds.
  EXPECT_NEAR(softmax(std::vector<float>{88.7F}, Rung::naive)[0], 1.F, 1e-6F);
}

TEST(Ladder, NaiveHasNaNWhereItsRowHas) {
  for (const std::size_t n : {3U, 40U, 100U})
    for (const float special : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        auto x = waves<float>(n, 1, 1);
        x[at] = special;
        for (const float y : softmax(x, Rung::naive)) EXPECT_TRUE(std::isnan(y)) << n << " " << at;
      }
}

TEST(Ladder, FarFramesAndSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  for (const Rung rung : {Rung::safe, Rung::online}) {
    for (const std::size_t n : {3U, 100U}) {
      std::vector<float> x(n, -most);
      EXPECT_FLOAT_EQ(softmax(x, rung)[n - 1], 1 / static_cast<float>(n));
      x[1] = 0x1p24F;
      x[n - 1] = 0x1p24F + 2;
      EXPECT_NEAR(softmax(x, rung)[n - 1], 0.8808F, 1e-4F);
      x[0] = inf;
      EXPECT_TRUE(std::isnan(softmax(x, rung)[1]));
      x[0] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(softmax(x, rung)[1]));
      x.assign(n, -inf);
      EXPECT_EQ(softmax(x, rung)[1], 0.F);
      x[2] = 5;
      EXPECT_EQ(softmax(x, rung)[2], 1.F);
      EXPECT_EQ(softmax(x, rung)[0], 0.F);
    }
  }
}

TEST(Ladder, RefusesWhatItDoesNotShow) {
  const std::vector<float> x(8, 1.F);
  EXPECT_THROW(softmax(x, Rung::online, -1.), softfold::Error);
}

}  // namespace
