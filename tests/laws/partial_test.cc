// Partials: however a row is cut and in whatever grouping its pieces join, the state has the whole row's bits.
#include "support/bits.hpp"
#include "support/generators.hpp"
#include "support/reference.hpp"

#include "softfold/lift/stream.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace softfold_test {
namespace {

using softfold::Partial;

template <class T>
class Cuts : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Cuts, Precisions);

/// Cut points: anywhere, at chunk boundaries, and close to them.
std::vector<std::int64_t> random_cuts(std::int64_t n, Random& random) {
  std::vector<std::int64_t> cuts{0, n};
  for (std::int64_t k = random.below(9); k > 0; --k) {
    std::int64_t at = random.below(n + 1);
    if (random.below(2) == 0) at = at / 1024 * 1024 + random.below(3) - 1;
    cuts.push_back(std::clamp<std::int64_t>(at, 0, n));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// A partial of x[begin, end), fed in random pieces.
template <class T>
Partial<T> feed(const std::vector<T>& x, std::int64_t begin, std::int64_t end, double scale, Random& random) {
  Partial<T> p(scale, begin);
  while (begin < end) {
    const std::int64_t most = random.below(2) == 0 ? 5000 : 7;
    const std::int64_t take = std::min(end - begin, 1 + random.below(most));
    p.append(std::span(x).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(take)));
    begin += take;
  }
  return p;
}

TYPED_TEST(Cuts, AnyCutJoinsToTheWholeRowsBits) {
  using T = TypeParam;
  EXPECT_TRUE(rc::check([] {
    const auto x = *any_row<T>(12000);
    const double scale = *any_scale();
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const auto whole = reference::reduce<T>(x, scale);
    const auto cuts = random_cuts(static_cast<std::int64_t>(x.size()), random);
    std::vector<Partial<T>> pieces;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) pieces.push_back(feed(x, cuts[i], cuts[i + 1], scale, random));
    while (pieces.size() > 1) {  // neighbours join in a random order
      const auto i = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(pieces.size()) - 1));
      pieces[i].join(pieces[i + 1]);
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    RC_ASSERT(pieces[0].length() == static_cast<std::int64_t>(x.size()));
    RC_ASSERT(same(pieces[0].state(), whole));
    RC_ASSERT(same(pieces[0].logsumexp(), reference::logsumexp<T>(whole, scale)));
  }));
}

// What travels is small: at most 2 * 1023 raw numbers and 2 log2 nodes, and it can be put together again.
TYPED_TEST(Cuts, APartialIsSmallAndSurvivesItsParts) {
  using T = TypeParam;
  EXPECT_TRUE(rc::check([] {
    const auto x = *any_row<T>(30000);
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const auto n = static_cast<std::int64_t>(x.size());
    const std::int64_t begin = random.below(n + 1), end = begin + random.below(n - begin + 1);
    auto p = feed(x, begin, end, 0.5, random);
    RC_ASSERT(p.head().size() < 1024 && p.tail().size() < 1024);
    RC_ASSERT(p.nodes().size() <= 2 * 5);
    Partial<T> again(0.5, begin, p.head(), p.nodes(), p.tail());
    RC_ASSERT(again.length() == p.length());
    RC_ASSERT(same(again.state(), p.state()));
    const auto rest = feed(x, end, n, 0.5, random);
    auto left = feed(x, 0, begin, 0.5, random);
    left.join(again);
    left.join(rest);
    RC_ASSERT(same(left.state(), reference::reduce<T>(x, 0.5)));
  }));
}

// A partial that begins inside a row has a state that is right within the bound, though not to the bit.
TYPED_TEST(Cuts, AShardsOwnStateIsRightWithinTheBound) {
  using T = TypeParam;
  EXPECT_TRUE(rc::check([] {
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    std::vector<T> x(8000);
    for (T& v : x) v = static_cast<T>(random.uniform(-5., 5.));
    const std::int64_t begin = random.below(8000), end = begin + 1 + random.below(8000 - begin);
    const auto s = feed(x, begin, end, 1., random).state();
    const auto alone = reference::reduce<T>(
        std::span<const T>(x).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), 1.);
    RC_ASSERT(s.m == alone.m);
    const double u = std::numeric_limits<T>::epsilon() / 2;
    RC_ASSERT(std::abs(static_cast<double>(s.d - alone.d)) <= 2 * 25 * u * static_cast<double>(s.d));
  }));
}

TEST(PartialRefuses, WhatDoesNotBelongTogether) {
  using softfold::Code;
  const auto code_of = [](auto&& f) {
    try {
      f();
    } catch (const softfold::Error& e) {
      EXPECT_FALSE(e.got.empty());
      EXPECT_FALSE(e.allowed.empty());
      return e.code;
    }
    return Code::ok;
  };
  const std::vector<float> x(5000, 1.F);
  Partial<float> a(1., 0);
  a.append(x);
  EXPECT_EQ(code_of([&] { a.join(Partial<float>(0.5, 5000)); }), Code::state);
  EXPECT_EQ(code_of([&] { a.join(Partial<float>(1., 5001)); }), Code::state);
  EXPECT_EQ(code_of([&] { a.join(Partial<float>(1., 4999)); }), Code::state);
  EXPECT_EQ(code_of([&] { Partial<float>(1., -1); }), Code::shape);
  EXPECT_EQ(code_of([&] { Partial<float>(1., (std::int64_t{1} << 53) + 1); }), Code::shape);
  EXPECT_EQ(code_of([&] { Partial<float>(std::nan(""), 0); }), Code::option);
  EXPECT_EQ(code_of([&] { Partial<float>(1e300, 0); }), Code::option);
  EXPECT_EQ(code_of([&] { Partial<double>(1.5e308, 0); }), Code::option);
  for (const double tiny : {1e-60, 1e-42, -8e-39}) EXPECT_EQ(code_of([&] { Partial<float>(tiny, 0); }), Code::option);
  EXPECT_EQ(code_of([&] { Partial<double>(5e-324, 0); }), Code::option);
  EXPECT_EQ(code_of([&] { Partial<double>(-0., 0); }), Code::ok);

  using Node = Partial<float>::Node;
  const std::span<const float> none, raw(x);
  const auto make = [&](std::int64_t offset, std::span<const float> head, std::vector<Node> nodes,
                        std::span<const float> tail) {
    return code_of([&] { Partial<float>(1., offset, head, nodes, tail); });
  };
  EXPECT_EQ(make(1000, raw.first(24), {{1, 0, {0., 1.F}}, {2, 1, {0., 1.F}}}, raw.first(1023)), Code::ok);
  EXPECT_EQ(make(1000, raw.first(25), {}, none), Code::state);                          // a head past its boundary
  EXPECT_EQ(make(0, raw.first(1), {}, none), Code::state);                              // a head where none can be
  EXPECT_EQ(make(1000, raw.first(23), {{1, 0, {0., 1.F}}}, none), Code::state);         // a gap after the head
  EXPECT_EQ(make(0, none, {{1, 0, {0., 1.F}}}, none), Code::state);                     // a gap before a node
  EXPECT_EQ(make(0, none, {{0, 0, {0., 1.F}}, {1, 1, {0., 1.F}}}, none), Code::state);  // a node off its grid
  EXPECT_EQ(make(0, none, {{0, -1, {0., 1.F}}}, none), Code::state);
  EXPECT_EQ(make(0, none, {{0, 48, {0., 1.F}}}, none), Code::state);
  EXPECT_EQ(make(0, none, {}, raw.first(1024)), Code::state);  // a tail that is a chunk
  EXPECT_EQ(make(1000, raw.first(3), {}, raw.first(3)), Code::state);
  const float inf = fold::infinity<float>();
  for (const auto& s : {Partial<float>::State{0, 0},
                        {0, 1e-45F},
                        {0, 0.69F},
                        {0, 1537},
                        {0, -1},
                        {0, inf},
                        {0.5, 1},
                        {std::nan(""), 1},
                        {0x1p129, 1},  // beyond the largest element's
                        {-1e300, 1},
                        {double{inf}, 2},
                        {-double{inf}, 1}})
    EXPECT_EQ(make(0, none, {{0, 0, s}}, none), Code::state) << s.m << " " << static_cast<double>(s.d);
  for (const auto& s : {Partial<float>::State{0, 0.71F}, {-3, 1448}, {double{inf}, 1}, {-double{inf}, 0}})
    EXPECT_EQ(make(0, none, {{0, 0, s}}, none), Code::ok) << s.m << " " << static_cast<double>(s.d);
}

// What the largest elements make of a chunk is a state under every scale.
TYPED_TEST(Cuts, TheLargestElementsHaveStates) {
  using T = TypeParam;
  const T most = std::numeric_limits<T>::max();
  const double least = sizeof(T) == 4 ? 8.3e-39 : 1.7e-308, greatest = sizeof(T) == 4 ? 2.3e38 : 1.2e308;
  for (const double scale : {0., 1., -0.7, 1e-20, least, -greatest}) {
    for (const T x : {most, -most}) {
      Partial<T> p(scale);
      EXPECT_NO_THROW(p.append(std::vector<T>(2048, x))) << scale;
      EXPECT_EQ(p.nodes().size(), 1u);
    }
  }
}

// A row has at most 2^53 elements, however it is said to be longer.
TEST(PartialRefuses, ToGrowBeyondTheLargestOffset) {
  constexpr std::int64_t most = Partial<float>::kLargestOffset;
  const auto refused = [](const Partial<float>& p, auto&& f) {
    const auto end = p.end();
    try {
      f();
      ADD_FAILURE() << "taken";
    } catch (const softfold::Error& e) {
      EXPECT_EQ(e.code, softfold::Code::shape) << e.what();
    }
    EXPECT_EQ(p.end(), end);
  };
  Partial<float> last(1., most - 1500), more(1., most - 1500);
  last.append(std::vector<float>(1500));
  EXPECT_EQ(last.end(), most);
  refused(last, [&] { last.append(std::vector<float>(1)); });
  refused(last, [&] { last.push_node({0., 1.F}, 0); });
  refused(more, [&] { more.append(std::vector<float>(1501)); });
  Partial<float> tall(1., 0);
  for (int i = 0; i < 8; ++i) tall.push_node({0., 1.F}, 40);
  refused(tall, [&] { tall.push_node({0., 1.F}, 40); });
  Partial<float> beyond(1., most);
  refused(more, [&] { Partial<float>(1., 0, {}, std::vector<Partial<float>::Node>(64, {0, 47, {0., 1.F}}), {}); });
  EXPECT_NO_THROW(last.join(beyond));
}

}  // namespace
}  // namespace softfold_test
