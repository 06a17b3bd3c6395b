// The first rungs of the ladder: safe and online within the contract's bound of the automatic choice, naive right where
// it can be and NaN where it overflows.
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

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

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& want, const std::vector<T>& x, double scale) {
  const double u = std::numeric_limits<T>::epsilon() / 2;
  T top = x[0];
  for (const T v : x) top = std::max(top, v);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double distance = scale * (static_cast<double>(top) - static_cast<double>(x[i]));
    const double bound =
        2 * (8 + distance + static_cast<double>(x.size()) / 4 + 2.5 * std::log(static_cast<double>(x.size()))) * u;
    EXPECT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]), bound * static_cast<double>(want[i])) << i;
  }
}

template <class T>
void rungs_agree() {
  for (const std::size_t n : {1U, 2U, 7U, 16U, 31U, 1000U, 1024U, 1025U, 5000U}) {
    for (const double scale : {1., 0.25}) {
      const auto x = waves<T>(n, T(9), T(2));
      const auto want = softmax(x, Rung::automatic, scale);
      for (const Rung rung : {Rung::naive, Rung::safe, Rung::online}) {
        SCOPED_TRACE(std::to_string(n) + " rung " + std::to_string(static_cast<int>(rung)));
        expect_near(softmax(x, rung, scale), want, x, scale);
      }
    }
  }
}

TEST(Ladder, RungsAgreeInFloat32) { rungs_agree<float>(); }
TEST(Ladder, RungsAgreeInFloat64) { rungs_agree<double>(); }

TEST(Ladder, NaiveOverflowsWhereTheOthersDoNot) {
  const auto x = waves<float>(100, 1, 500);
  EXPECT_TRUE(std::isnan(softmax(x, Rung::naive)[0]));
  const auto want = softmax(x, Rung::automatic);
  for (const Rung rung : {Rung::safe, Rung::online}) expect_near(softmax(x, rung), want, x, 1);
  // And not before it must: exp(88.7) is the last that float holds.
  EXPECT_NEAR(softmax(std::vector<float>{88.7F}, Rung::naive)[0], 1.F, 1e-6F);
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
