// One tree, however it is built: the definition by recursion, the halving, the counter and the flat reduction agree.
#include "support/bits.hpp"
#include "support/generators.hpp"

#include "softfold/lift/chunks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <vector>

namespace softfold_test {
namespace {

namespace fold = softfold::fold;
namespace lift = softfold::lift;

template <class T>
class Tree : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Tree, Precisions);

/// The tree as its description says it: the node of `level` that begins at node `begin`, missing nodes as identities.
template <class F>
typename F::State by_recursion(const std::vector<typename F::State>& leaves, std::size_t begin, int level) {
  if (level == 0) return begin < leaves.size() ? leaves[begin] : F::identity();
  const auto half = std::size_t{1} << (level - 1);
  return F::merge(by_recursion<F>(leaves, begin, level - 1), by_recursion<F>(leaves, begin + half, level - 1));
}

int levels_for(std::size_t count) {
  int level = 0;
  while ((std::size_t{1} << level) < count) ++level;
  return level;
}

template <class T>
std::vector<typename fold::LogSumExp<T>::State> random_states(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<typename fold::LogSumExp<T>::State> states(count);
  for (auto& s : states) {
    s = fold::LogSumExp<T>::identity();
    if (random.below(10) != 0) s = {static_cast<double>(random.below(12)), static_cast<T>(random.uniform(0.8, 1000.))};
  }
  return states;
}

TYPED_TEST(Tree, EveryWayOfBuildingItGivesTheSameBits) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto count = *rc::gen::inRange<std::size_t>(0, 200);
    const auto states = random_states<TypeParam>(count, *rc::gen::arbitrary<std::uint64_t>());
    const auto expected = by_recursion<Lse>(states, 0, levels_for(count));
    lift::TreeBuilder<Lse> builder;
    for (const auto& s : states) builder.push(s);
    RC_ASSERT(same(builder.root(), expected));
    RC_ASSERT(builder.chunks() == static_cast<std::int64_t>(count));
    auto flat = states;
    RC_ASSERT(same(lift::reduce_nodes<Lse>(flat.data(), static_cast<std::int64_t>(count)), expected));
  }));
}

// Workers may reduce any aligned run of chunks and hand over its node.
TYPED_TEST(Tree, AlignedNodesMayBeReducedApart) {
  using Lse = fold::LogSumExp<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto count = *rc::gen::inRange<std::size_t>(1, 300);
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    const auto states = random_states<TypeParam>(count, random.next());
    lift::TreeBuilder<Lse> whole, parts;
    for (const auto& s : states) whole.push(s);
    for (std::size_t at = 0; at < count;) {
      int level = static_cast<int>(random.below(8));
      while (at % (std::size_t{1} << level) != 0 || at + (std::size_t{1} << level) > count) --level;
      std::vector run(states.begin() + static_cast<std::ptrdiff_t>(at),
                      states.begin() + static_cast<std::ptrdiff_t>(at + (std::size_t{1} << level)));
      parts.push(lift::reduce_nodes<Lse>(run.data(), std::int64_t{1} << level), level);
      at += std::size_t{1} << level;
    }
    RC_ASSERT(same(parts.root(), whole.root()));
  }));
}

// Halving a chunk of n is halving one of kChunk that is filled up with identities: 0 for d, -0 for signed sums.
TYPED_TEST(Tree, AChunkIsFilledUpWithIdentities) {
  using Sum = fold::Sum<TypeParam>;
  EXPECT_TRUE(rc::check([] {
    const auto n = *rc::gen::inRange(1, lift::kChunk + 1);
    const bool positive = *rc::gen::arbitrary<bool>();
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    std::vector<TypeParam> a(lift::kChunk, positive ? TypeParam(0) : Sum::identity());
    for (int i = 0; i < n; ++i) {
      a[static_cast<std::size_t>(i)] = static_cast<TypeParam>(random.uniform(positive ? 0.5 : -2., 2.));
      if (random.below(50) == 0) a[static_cast<std::size_t>(i)] = positive ? TypeParam(0) : -TypeParam(0);
    }
    std::vector<TypeParam> full = a;
    for (std::size_t stride = lift::kChunk / 2; stride > 0; stride /= 2)
      for (std::size_t i = 0; i < stride; ++i) full[i] = full[i] + full[i + stride];
    RC_ASSERT(same(lift::halve<Sum>(a.data(), n), full[0]));
  }));
}

TYPED_TEST(Tree, NothingAndOneNode) {
  using Lse = fold::LogSumExp<TypeParam>;
  lift::TreeBuilder<Lse> builder;
  EXPECT_TRUE(same(builder.root(), Lse::identity()));
  EXPECT_TRUE(same(lift::reduce_nodes<Lse>(nullptr, 0), Lse::identity()));
  builder.push({3., TypeParam(1.25)});
  EXPECT_TRUE(same(builder.root(), {3., TypeParam(1.25)}));
  EXPECT_EQ(lift::chunk_count(0), 0);
  EXPECT_EQ(lift::chunk_count(1024), 1);
  EXPECT_EQ(lift::chunk_count(1025), 2);
  EXPECT_EQ(lift::chunk_count(std::int64_t{1} << 53), std::int64_t{1} << 43);
}

}  // namespace
}  // namespace softfold_test
