// Rows that broke simpler definitions, each with the result it must have.
#include "support/bits.hpp"
#include "support/reference.hpp"

#include "softfold/lift/stream.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

using softfold::Partial;

template <class T>
std::vector<T> softmax_of(const std::vector<T>& x, double scale = 1) {
  return reference::softmax<T>(x, reference::reduce<T>(x, scale), scale);
}

// A leaf is flushed in its own chunk's frame, not in the row's. Here a leaf that the row's frame would flush tips one
// tie, which tips the next, up to the last bit of d.
TEST(Counterexamples, AFlushedLeafWouldCascadeThroughTies) {
  std::vector<float> x(2048, -1e6F);
  std::fill_n(x.begin(), 1024, 0.F);
  float* const second = x.data() + 1024;
  second[0] = -134, second[512] = -136, second[256] = -110, second[128] = -86;
  second[64] = -62, second[32] = -38, second[16] = -14;
  const double scale = fold::kLn2;
  const float c = fold::make_scale<float>(scale).c;
  ASSERT_EQ(c, 1.F);
  const auto s = reference::reduce<float>(x, scale);
  EXPECT_EQ(s.m, 0.);
  EXPECT_EQ(s.d, 1024.F + 0x1p-13F);

  // The same chunk with its leaves flushed in the row's frame loses the tip.
  std::vector<float> terms(1024);
  for (std::size_t i = 0; i < 1024; ++i) terms[i] = fold::term<fold::Scalar<float>>(second[i], c, 0.F);
  EXPECT_EQ(1024.F + lift::halve<fold::Sum<float>>(terms.data(), 1024), 1024.F);

  for (const std::int64_t cut : {1, 100, 1023, 1024, 1025, 1040, 1536, 2047}) {
    Partial<float> a(scale, 0), b(scale, cut);
    a.append(std::span(x).first(static_cast<std::size_t>(cut)));
    b.append(std::span(x).subspan(static_cast<std::size_t>(cut)));
    a.join(b);
    EXPECT_TRUE(same(a.state(), s)) << "cut at " << cut;
  }
}

// Two bare states of three chunks each do not hold what the row's tree needs; two partials do.
TEST(Counterexamples, BareStatesOfThreeAndThreeChunksDifferWherePartialsAgree) {
  using Lse = fold::LogSumExp<float>;
  Random random(33);
  int bare_differ = 0;
  for (int row = 0; row < 200; ++row) {
    std::vector<float> x(6 * 1024);
    for (float& v : x) v = static_cast<float>(random.uniform(-4., 4.));
    const std::span<const float> all(x), left = all.first(3072), right = all.subspan(3072);
    const auto whole = reference::reduce<float>(all, 1.);
    bare_differ += !same(Lse::merge(reference::reduce<float>(left, 1.), reference::reduce<float>(right, 1.)), whole);
    Partial<float> a(1., 0), b(1., 3072);
    a.append(left);
    b.append(right);
    a.join(b);
    EXPECT_TRUE(same(a.state(), whole)) << "row " << row;
    // Four and two chunks are an aligned cut, for which bare states are enough.
    EXPECT_TRUE(
        same(Lse::merge(reference::reduce<float>(all.first(4096), 1.), reference::reduce<float>(all.subspan(4096), 1.)),
             whole));
  }
  EXPECT_GT(bare_differ, 20);
}

// Beyond 2^22 the fast split has no bits left for f.
TEST(Counterexamples, NeighboursAtTwoToThe24KeepTheirDistance) {
  const auto y = softmax_of<float>({16777216.F, 16777218.F});
  EXPECT_NEAR(y[0], 0.11920292, 2e-8);
  EXPECT_NEAR(y[1], 0.88079708, 1e-7);
  const auto z = softmax_of<double>({0x1p53, 0x1p53 + 2});
  EXPECT_NEAR(z[0], 0.11920292202211755, 1e-16);
  EXPECT_NEAR(z[1], 0.88079707797788245, 2e-16);
}

/// Equal up to one rounding of the reciprocal and one of the product; zeros exactly.
template <class T>
void expect_close(const std::vector<T>& y, const std::vector<T>& expected) {
  ASSERT_EQ(y.size(), expected.size());
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_LE(std::abs(y[i] - expected[i]), std::numeric_limits<T>::epsilon() * expected[i]) << "at " << i;
}

template <class T>
class Largest : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Largest, Precisions);

TYPED_TEST(Largest, RowsOfTheLargestNumberAreUniform) {
  using limits = std::numeric_limits<TypeParam>;
  for (const double scale : {1., -1., 0.25}) {
    for (const TypeParam value : {limits::max(), limits::lowest(), limits::max() / 2, limits::denorm_min()}) {
      const auto y = softmax_of(std::vector<TypeParam>(4, value), scale);
      for (const TypeParam p : y) {
        EXPECT_EQ(p, y[0]) << value << " at scale " << scale;
        EXPECT_LE(std::abs(p - TypeParam(0.25)), limits::epsilon() / 4) << value << " at scale " << scale;
      }
    }
  }
}

TYPED_TEST(Largest, OppositeExtremesAreZeroAndOne) {
  using limits = std::numeric_limits<TypeParam>;
  const std::vector<TypeParam> x{limits::max(), limits::lowest(), 0, limits::max()};
  const auto y = softmax_of(x);
  expect_close(y, {TypeParam(0.5), 0, 0, TypeParam(0.5)});
  const auto z = softmax_of(x, -1.);
  expect_close(z, {0, 1, 0, 0});
  for (const double scale : {1., -1.}) {
    const auto s = reference::reduce<TypeParam>(x, scale);
    EXPECT_TRUE(std::isfinite(reference::logsumexp<TypeParam>(s, scale)));
    EXPECT_EQ(reference::logsumexp<TypeParam>(s, scale), limits::max());
  }
}

// No finite number stands for -inf: -FLT_MAX beside -inf is the whole row.
TYPED_TEST(Largest, TheLowestNumberIsNotEmpty) {
  using limits = std::numeric_limits<TypeParam>;
  const auto y = softmax_of<TypeParam>({-limits::infinity(), limits::lowest(), -limits::infinity()});
  expect_close(y, {0, 1, 0});
}

TYPED_TEST(Largest, SpecialsOfAState) {
  using T = TypeParam;
  using Lse = fold::LogSumExp<T>;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const auto lse = [](std::vector<T> x, double scale = 1) {
    return reference::logsumexp<T>(reference::reduce<T>(x, scale), scale);
  };
  EXPECT_TRUE(same(Lse::merge(Lse::identity(), Lse::identity()), Lse::identity()));
  EXPECT_TRUE(same(reference::reduce<T>(std::vector<T>{}, 1.), Lse::identity()));
  EXPECT_TRUE(same(reference::reduce<T>(std::vector<T>(3000, -inf), 1.), Lse::identity()));
  EXPECT_TRUE(same(lse({}), -inf));
  EXPECT_TRUE(same(lse({-inf, -inf}), -inf));
  EXPECT_TRUE(same(lse({1, inf}), inf));
  EXPECT_TRUE(same(lse({inf, inf}), inf));
  EXPECT_TRUE(same(lse({inf, nan}), fold::canonical_nan<T>()));
  EXPECT_TRUE(same(lse({-nan, 1}), fold::canonical_nan<T>()));
  EXPECT_TRUE(same(lse({-inf, nan}), fold::canonical_nan<T>()));
  EXPECT_TRUE(same(lse({-inf}, -1.), inf));
  EXPECT_TRUE(same(lse({inf, 2}, -1.), T(-2)));
  EXPECT_TRUE(same(lse({inf, 1}, 0.), fold::canonical_nan<T>()));  // 0 * inf
  EXPECT_NEAR(static_cast<double>(lse({5, -7, 1}, 0.)), std::log(3.), 1e-7);
  // A NaN far into the row, beside +inf and in another chunk, in whatever order.
  std::vector<T> x(5000, T(1));
  x[100] = inf, x[4999] = nan;
  EXPECT_TRUE(same(lse(x), fold::canonical_nan<T>()));
  std::reverse(x.begin(), x.end());
  EXPECT_TRUE(same(lse(x), fold::canonical_nan<T>()));
  for (const T y : softmax_of<T>({1, inf, 2})) EXPECT_TRUE(same(y, fold::canonical_nan<T>()));
  for (const T y : softmax_of<T>({1, nan, 2})) EXPECT_TRUE(same(y, fold::canonical_nan<T>()));
}

// One element's probability may be 1 - 2^-24, never more than 1.
TYPED_TEST(Largest, ALoneElementIsNeverMoreThanOne) {
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<TypeParam>(random.uniform(-40., 40.));
    const TypeParam y = softmax_of<TypeParam>({x})[0];
    ASSERT_LE(y, TypeParam(1)) << x;
    ASSERT_GE(y, TypeParam(1) - std::numeric_limits<TypeParam>::epsilon()) << x;
  }
}

}  // namespace
}  // namespace softfold_test
