// The laws of a fold, as properties: identity, commutativity, associativity, and frames that do not matter.
#include "support/bits.hpp"
#include "support/generators.hpp"

#include "softfold/fold/attend.hpp"
#include "softfold/fold/entropy.hpp"
#include "softfold/lift/chunks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <vector>

namespace softfold_test {
namespace {

namespace fold = softfold::fold;
namespace lift = softfold::lift;

template <class T>
class Fold : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Fold, Precisions);

static_assert(fold::Fold<fold::LogSumExp<float>> && fold::Fold<fold::LogSumExp<double>>);
static_assert(fold::Fold<fold::Sum<float>> && fold::Fold<fold::Sum<double>>);

TYPED_TEST(Fold, IdentityIsExactOnBothSides) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto s = *any_state<TypeParam>();
    RC_ASSERT(same(Lse::merge(Lse::identity(), s), s));
    RC_ASSERT(same(Lse::merge(s, Lse::identity()), s));
  }));
  EXPECT_TRUE(same(Lse::merge(Lse::identity(), Lse::identity()), Lse::identity()));
}

TYPED_TEST(Fold, MergeIsCommutativeBitForBit) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto a = *any_state<TypeParam>(), b = *any_state<TypeParam>();
    RC_ASSERT(same(Lse::merge(a, b), Lse::merge(b, a)));
  }));
}

// Two roundings on each side: the two results are within 4u of each other. Special states agree exactly.
TYPED_TEST(Fold, MergeIsAssociativeWithinFourRoundings) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto a = *any_state<TypeParam>(), b = *any_state<TypeParam>(), c = *any_state<TypeParam>();
    const auto left = Lse::merge(Lse::merge(a, b), c), right = Lse::merge(a, Lse::merge(b, c));
    RC_ASSERT(same(left.m, right.m));
    if (!std::isfinite(left.m)) {
      RC_ASSERT(same(left.d, right.d));
    } else {
      const long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
      const long double difference = std::abs(static_cast<long double>(left.d) - static_cast<long double>(right.d));
      RC_ASSERT(difference <= 4 * u * (1 + 4 * u) * static_cast<long double>(left.d));
    }
  }));
}

// Attention's fold: logsumexp's laws for (m, d); for o the same factors, so commutative bit for bit, and on both sides
// of an association within four roundings of the largest of its parts.
template <class T>
using Attend = fold::Attend<T, 2>;
static_assert(fold::Fold<Attend<float>> && fold::Fold<Attend<double>>);

template <class T>
typename Attend<T>::State any_attention() {
  auto s = Attend<T>::identity();
  const auto count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) {
    const T t = static_cast<T>(*rc::gen::inRange(-30000, 30000)) / T(100);
    s = Attend<T>::merge(s, Attend<T>::lift({t, {static_cast<T>(*rc::gen::inRange(-9, 9)), T(1)}}));
  }
  return s;
}

TYPED_TEST(Fold, AttentionMergesAsLogSumExpDoes) {
  using A = Attend<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto a = any_attention<TypeParam>(), b = any_attention<TypeParam>(), c = any_attention<TypeParam>();
    const auto ab = A::merge(a, b), ba = A::merge(b, a), ea = A::merge(A::identity(), a),
               ae = A::merge(a, A::identity());
    RC_ASSERT(same(ab.sum, ba.sum) && same(ea.sum, a.sum) && same(ae.sum, a.sum));
    const auto left = A::merge(ab, c), right = A::merge(a, A::merge(b, c));
    for (int i = 0; i < 2; ++i) {
      RC_ASSERT(same(ab.o[i], ba.o[i]) && ea.o[i] == a.o[i] && ae.o[i] == a.o[i]);
      const double u = std::numeric_limits<TypeParam>::epsilon() / 2;
      RC_ASSERT(std::abs(static_cast<double>(left.o[i] - right.o[i])) <= 4 * u * 9 * static_cast<double>(left.sum.d));
    }
    RC_ASSERT(a.sum.d == TypeParam(0) || std::abs(static_cast<double>(a.o[1] - a.sum.d)) == 0);  // values of 1 sum to d
  }));
}

TYPED_TEST(Fold, AttentionMergesZeroFramesEitherWay) {
  using A = Attend<TypeParam>;
  const auto a = A::lift({TypeParam(-0.5), {1, 1}}), b = A::lift({TypeParam(0), {1, 1}});
  EXPECT_TRUE(same(A::merge(a, b).sum, A::merge(b, a).sum));
}

TYPED_TEST(Fold, AttentionFinishes) {
  using A = Attend<TypeParam>;
  const A fold;
  const auto empty = fold.finish(A::identity());
  EXPECT_EQ(empty.out[0], TypeParam(0));
  EXPECT_EQ(empty.lse, -std::numeric_limits<double>::infinity());
  auto s = A::identity();
  for (const TypeParam t : {TypeParam(3), TypeParam(3), -std::numeric_limits<TypeParam>::infinity()})
    s = fold.push(s, {t, {t, TypeParam(2)}});
  const auto two = fold.finish(s);
  EXPECT_EQ(two.out[0], TypeParam(3));
  EXPECT_EQ(two.out[1], TypeParam(2));
  EXPECT_NEAR(two.lse, 4 * std::log(2.), 1e-15);
  for (const TypeParam t : {std::numeric_limits<TypeParam>::infinity(), std::numeric_limits<TypeParam>::quiet_NaN()}) {
    const auto bad = fold.finish(fold.push(s, {t, {TypeParam(1), TypeParam(1)}}));
    EXPECT_TRUE(std::isnan(bad.out[0]) && std::isnan(bad.lse));
  }
}

// The entropy's fold: logsumexp's laws for (m, d), and for w, whose parts all have one sign, a rounding more a merge.
static_assert(fold::Fold<fold::EntropySum<float>> && fold::Fold<fold::EntropySum<double>>);

template <class T>
fold::EntropyState<T> any_entropy() {
  const fold::EntropySum<T> f{fold::make_scale<T>(*rc::gen::element(1., -0.3, 1e-3, 1e3))};
  auto s = f.identity();
  const auto count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) s = f.push(s, *any_element<T>());
  return s;
}
template <class T>
bool same_entropy(const fold::EntropyState<T>& a, const fold::EntropyState<T>& b) {
  return same(a.row(), b.row()) && same(a.w, b.w);
}

TYPED_TEST(Fold, EntropyMergesAsLogSumExpDoes) {
  using E = fold::EntropySum<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto a = any_entropy<TypeParam>(), b = any_entropy<TypeParam>(), c = any_entropy<TypeParam>();
    const auto ab = E::merge(a, b), left = E::merge(ab, c), right = E::merge(a, E::merge(b, c));
    RC_ASSERT(same_entropy(ab, E::merge(b, a)));
    RC_ASSERT(same_entropy(E::merge(E::identity(), a), a) && same_entropy(E::merge(a, E::identity()), a));
    RC_ASSERT(same(ab.row(), fold::LogSumExp<TypeParam>::merge(a.row(), b.row())));
    if (!std::isfinite(left.m)) {
      RC_ASSERT(same_entropy(left, right));
    } else if (E::Lse::is_fast(left.m)) {
      const double u = std::numeric_limits<TypeParam>::epsilon() / 2;
      RC_ASSERT(left.w >= 0 && std::abs(static_cast<double>(left.w - right.w)) <= 8 * u * static_cast<double>(left.w));
    }
  }));
}

TYPED_TEST(Fold, EntropyFinishes) {
  using E = fold::EntropySum<TypeParam>;
  const E fold{fold::make_scale<TypeParam>(2.)};
  EXPECT_EQ(fold.finish(E::identity()), TypeParam(0));
  auto s = E::identity();
  for (const TypeParam x : {TypeParam(3), TypeParam(3), -std::numeric_limits<TypeParam>::infinity(), TypeParam(3)})
    s = fold.push(s, x);
  EXPECT_NEAR(fold.finish(s), std::log(3.), 8 * std::numeric_limits<TypeParam>::epsilon());
  s = fold.push(s, TypeParam(-1000));  // too far below to count
  EXPECT_NEAR(fold.finish(s), std::log(3.), 8 * std::numeric_limits<TypeParam>::epsilon());
  for (const TypeParam x : {std::numeric_limits<TypeParam>::infinity(), std::numeric_limits<TypeParam>::quiet_NaN()})
    EXPECT_TRUE(std::isnan(fold.finish(fold.push(s, x))));
}

TYPED_TEST(Fold, SumHasTheSignedZeroAsItsIdentityAndCommutes) {
  using Sum = fold::Sum<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto a = *finite_element<TypeParam>(), b = *finite_element<TypeParam>();
    RC_ASSERT(same(Sum::merge(Sum::identity(), a), a));
    RC_ASSERT(same(Sum::merge(a, Sum::identity()), a));
    RC_ASSERT(same(Sum::merge(a, b), Sum::merge(b, a)));
  }));
  EXPECT_TRUE(same(Sum::merge(-TypeParam(0), Sum::identity()), -TypeParam(0)));
  EXPECT_TRUE(same(Sum::merge(TypeParam(0), Sum::identity()), TypeParam(0)));
}

// Pushing an element is merging with its state.
TYPED_TEST(Fold, PushIsMergeWithALiftedElement) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const Lse f{fold::make_scale<TypeParam>(*any_scale())};
    const auto s = *any_state<TypeParam>();
    const auto x = *any_element<TypeParam>();
    RC_ASSERT(same(f.push(s, x), Lse::merge(s, f.lift(x))));
  }));
}

// m is an integer number of units and the largest term is at least sqrt(1/2). (In float64 beyond the fast range, where
// m has no unit's bit left, the rest of the exponent is d's.)
TYPED_TEST(Fold, StatesStayInTheirRange) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto s = *any_state<TypeParam>();
    RC_ASSERT(!std::isnan(s.m));
    if (s.m == -INFINITY) RC_ASSERT(same(s, Lse::identity()));
    if (s.m == INFINITY) RC_ASSERT(same(s, Lse::plus_infinity()) || same(s, Lse::not_a_number()));
    if (std::isfinite(s.m)) {
      const double units = s.m * fold::Real<TypeParam>::kUnit;
      RC_ASSERT(units == std::rint(units));
      if (sizeof(TypeParam) == 4 || Lse::is_fast(s.m)) RC_ASSERT(s.d >= TypeParam(0.7071067));
      RC_ASSERT(s.d > TypeParam(0));
      RC_ASSERT(std::isfinite(s.d));
    }
  }));
}

// The state of one element does not depend on the way to it: alone in a chunk, or lifted.
TYPED_TEST(Fold, LiftIsAChunkOfOne) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const Lse f{fold::make_scale<TypeParam>(*any_scale())};
    const auto x = *any_element<TypeParam>();
    TypeParam terms[lift::kChunk];
    RC_ASSERT(same(f.lift(x), lift::reduce_chunk(&x, 1, f.scale.c, terms)));
  }));
}

// Where both splits are exact they give the same term, so the branch between them cannot be seen in the bits.
TYPED_TEST(Fold, FastAndWideSplitsAgreeOnTheirOverlap) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto c = fold::make_scale<TypeParam>(*any_scale()).c;
    RC_PRE(c != TypeParam(0));
    const double limit = static_cast<double>(fold::Real<TypeParam>::kFastHighest);
    const double t = *rc::gen::map(rc::gen::inRange<std::int64_t>(-(1LL << 40), 1LL << 40), [limit](std::int64_t k) {
      const double part = static_cast<double>(k) * 0x1p-40;
      return k % 3 == 0 ? part * limit : k % 3 == 1 ? part * 4096. : part;
    });
    const auto x = static_cast<TypeParam>(t / static_cast<double>(c));
    RC_PRE(std::isfinite(x));
    const auto m = Lse::frame(x, c).m;
    RC_PRE(Lse::is_fast(m));
    for (const int above : {0, 1, 2, 17, 60, 124, 125, 126, 127, 500}) {
      const double frame = m + above / fold::Real<TypeParam>::kUnit;
      if (!Lse::is_fast(frame)) continue;
      RC_ASSERT(same(fold::term<fold::Scalar<TypeParam>>(x, c, Lse::narrow(frame)), fold::term_wide(x, c, frame)));
    }
  }));
}

// An integer shift only moves the exponent: a chunk reduced in any frame in which nothing is flushed, then moved into
// its own frame, has the same bits. Kernels are free to guess a frame and check.
TYPED_TEST(Fold, AnyFrameThatFlushesNothingGivesTheSameBits) {
  using Lse = fold::LogSumExp<TypeParam>;
  using Scalar = fold::Scalar<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto c = fold::make_scale<TypeParam>(*rc::gen::element(1., 0.125, -3., 0x1.62e42fefa39efp-1)).c;
    const auto n = *rc::gen::inRange(1, lift::kChunk + 1);
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const double centre = random.uniform(-1000., 1000.), spread = random.uniform(0., 25.);
    std::vector<TypeParam> x, terms(lift::kChunk);
    for (int i = 0; i < n; ++i)
      x.push_back(static_cast<TypeParam>(random.uniform(centre - spread, centre + spread) / static_cast<double>(c)));
    const auto own = lift::reduce_chunk(x.data(), n, c, terms.data());
    const auto shift = *rc::gen::inRange(-40, 41);
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      terms[at] = fold::term<Scalar>(x[at], c, Lse::narrow(own.m) + static_cast<TypeParam>(shift));
      RC_ASSERT(terms[at] > TypeParam(0));
    }
    const auto other = lift::halve<fold::Sum<TypeParam>>(terms.data(), n);
    RC_ASSERT(same(Scalar::times_power_of_two(other, static_cast<TypeParam>(shift)), own.d));
  }));
}

// Which of two equally near integers n is does not matter: P(1/2) == 2 P(-1/2).
TYPED_TEST(Fold, TiesBetweenTwoIntegersGiveTheSameTerm) {
  using A = fold::Scalar<TypeParam>;
  const TypeParam half(0.5);
  EXPECT_TRUE(same(fold::exp2_fraction<A>(half), TypeParam(2) * fold::exp2_fraction<A>(-half)));
}

// Leaving a term out before the multiplication is the same as looking at the product.
TYPED_TEST(Fold, TheLeastTermIsTheFirstThatIsWritten) {
  using T = TypeParam;
  using Normaliser = fold::Normaliser<T>;
  using limits = std::numeric_limits<T>;
  const auto is_least = [](T multiplier) {
    const T least = Normaliser::least_term(multiplier);
    return Normaliser::probability(least, multiplier) > T(0) &&
           Normaliser::probability(std::nextafter(least, T(0)), multiplier) == T(0);
  };
  for (int e = limits::min_exponent - limits::digits; e <= 1; ++e) EXPECT_TRUE(is_least(std::ldexp(T(1), e))) << e;
  EXPECT_TRUE(rc::check([&] {
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const int e = *rc::gen::inRange(limits::min_exponent - limits::digits, 2);
    for (int i = 0; i < 100; ++i) RC_ASSERT(is_least(static_cast<T>(std::ldexp(random.uniform(1., 2.), e))));
  }));
  EXPECT_TRUE(same(Normaliser::least_term(T(0)), limits::infinity()));
}

}  // namespace
}  // namespace softfold_test
