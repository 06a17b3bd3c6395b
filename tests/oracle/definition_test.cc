// The scalar definition against the oracles: the contract holds for the arithmetic itself.
#include "oracle/suite.hpp"
#include "support/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace softfold_test::oracle {
namespace {

struct Definition {
  template <class S>
  static Results run(std::span<const S> x, double scale) {
    using T = fold::FoldType<S>;
    std::vector<T> wide(x.size());
    std::transform(x.begin(), x.end(), wide.begin(), [](S v) { return fold::widen(v); });
    const auto s = reference::reduce<T>(wide, scale);
    const auto stored = [](const std::vector<T>& y) {
      std::vector<double> out(y.size());
      std::transform(y.begin(), y.end(), out.begin(),
                     [](T v) { return static_cast<double>(fold::widen(fold::narrow<S>(v))); });
      return out;
    };
    return {stored(reference::softmax<T>(wide, s, scale)), stored(reference::log_softmax<T>(wide, s, scale)),
            stored({reference::logsumexp<T>(s, scale)})[0]};
  }
};

template <class S>
class DefinitionOracle : public testing::Test {};
TYPED_TEST_SUITE(DefinitionOracle, Storages);

TYPED_TEST(DefinitionOracle, ShortRows) { check_short_rows<Definition, TypeParam>(); }
TYPED_TEST(DefinitionOracle, FaintScales) { check_faint_scales<Definition, TypeParam>(); }
TYPED_TEST(DefinitionOracle, MediumRows) { check_medium_rows<Definition, TypeParam>(); }
TYPED_TEST(DefinitionOracle, HugeRows) { check_huge_rows<Definition, TypeParam>(huge<TypeParam>); }
TYPED_TEST(DefinitionOracle, LongHugeRows) { check_huge_rows<Definition, TypeParam>(std::int64_t{1} << 24); }

// The two oracles agree far below the bounds that they are asked to judge.
TEST(Oracles, LongDoubleAgreesWithMpfr) {
  for (const Kind kind : all_kinds()) {
    for (const double scale : {1., -0.3}) {
      const auto x = make_row<double>(kind, 501);
      const Exact a = in_long_double(x, scale), b = in_mpfr(x, scale);
      ASSERT_EQ(a.row, b.row);
      if (a.row != Exact::Row::regular) continue;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (b.probability[i] < 0x1p-1022L) continue;
        const long double allowed = (b.distance[i] + 16) * 0x1p-63L;
        ASSERT_LE(std::abs(a.probability[i] - b.probability[i]), allowed * b.probability[i]) << name_of(kind);
        ASSERT_LE(std::abs(a.log_probability[i] - b.log_probability[i]), allowed) << name_of(kind);
      }
      ASSERT_LE(std::abs(a.lse - b.lse), 0x1p-62L * (std::abs(b.lse) + 1)) << name_of(kind);
    }
  }
}

// The bound of the tree is attained: x_0 = 0 and one leaf of 2^-24 in each sibling subtree, every addition a tie that
// is lost. d comes out as 1 for 1 + log2(n) 2^-24.
TEST(DefinitionBounds, OneLeafInEverySiblingSubtreeAttainsTheTreesBound) {
  const double scale = fold::kLn2;
  ASSERT_EQ(fold::make_scale<float>(scale).c, 1.F);
  for (const int levels : {10, 14, 20}) {
    std::vector<float> x(std::size_t{1} << levels, -200.F);
    x[0] = 0;
    for (int l = 0; l < levels; ++l) x[std::size_t{1} << l] = -24.F;
    const auto s = reference::reduce<float>(x, scale);
    EXPECT_EQ(s.m, 0.);
    EXPECT_EQ(s.d, 1.F);
    Contract<float> contract;
    check_row<Definition, float>(contract, x, scale, "2^" + std::to_string(levels));
    EXPECT_GT(contract.measured.softmax.in_u, 0.9 * levels);
    contract.measured.print("float32");
  }
}

}  // namespace
}  // namespace softfold_test::oracle
