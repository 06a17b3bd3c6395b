// Top-k against a sort by the stated order, its probabilities against softmax's, the laws of its fold, and what it
// refuses.
#include "own_plan.hpp"
#include "refuse/refusal.hpp"

#include "softfold/fold/topk.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace softfold_test {
namespace {

using softfold::TopkOptions;
namespace fold = softfold::fold;

/// The order in words: NaN first, then by value, -0 equal to +0, then by index.
bool comes_before(float a, std::int64_t i, float b, std::int64_t j) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b) ? i < j : std::isnan(a);
  return a > b || (a == b && i < j);
}

/// Few values, many ties, every special.
std::vector<float> hard_row(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  const float few[] = {0.F, -0.F, 1.F, -1.F, NAN, INFINITY, -INFINITY, 3e38F, 1e-45F, -1e-45F, 2.F, 2.5F};
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x)
    v = seed % 3 == 0   ? few[random.below(12)]
        : seed % 3 == 1 ? static_cast<float>(random.below(40))
                        : static_cast<float>(random.uniform(-5, 5));
  return x;
}

TEST(Topk, IsTheSortsFirstK) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::int64_t n = std::int64_t{1} << (seed % 13),
                       k = std::min<std::int64_t>(n, 1 + static_cast<std::int64_t>(seed * seed) % 90);
    const auto x = hard_row(n, seed);
    std::vector<std::int64_t> order(x.size()), indices(static_cast<std::size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
      return comes_before(x[static_cast<std::size_t>(i)], i, x[static_cast<std::size_t>(j)], j);
    });
    order.resize(static_cast<std::size_t>(k));
    std::vector<float> values(indices.size());
    const Shape shape{1, n}, few{1, k};
    softfold::topk(View(x.data(), DType::float32, shape), View(values.data(), DType::float32, few),
                   View(indices.data(), DType::int64, few));
    EXPECT_EQ(indices, order) << seed;
    for (std::size_t j = 0; j < values.size(); ++j) {
      const float expected = x[static_cast<std::size_t>(order[j])];
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(values[j]) : same(values[j], expected)) << seed;
    }
    TopkOptions unsorted;
    unsorted.sorted = false;
    softfold::topk(View(x.data(), DType::float32, shape), View(values.data(), DType::float32, few),
                   View(indices.data(), DType::int64, few), unsorted);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(indices, order) << seed;
  }
}

TEST(Topk, ProbabilitiesAndLseAreTheWholeRows) {
  constexpr std::int64_t n = 3000, k = 40;
  std::vector<float> x(2 * n), p(x.size()), lp(x.size()), values(2 * k), probabilities(2 * k), logs(2 * k), lse(2),
      expected(2);
  Random random(4);
  for (float& v : x) v = static_cast<float>(random.uniform(-9, 9));
  std::vector<std::int32_t> indices(2 * k);
  const Shape shape{2, n}, few{2, k}, rows{2};
  const View view(x.data(), DType::float32, shape);
  TopkOptions o;
  o.rows.scale = 0.7;
  o.probabilities = View(probabilities.data(), DType::float32, few);
  o.log_probabilities = View(logs.data(), DType::float32, few);
  o.lse = View(lse.data(), DType::float32, rows);
  softfold::topk(view, View(values.data(), DType::float32, few), View(indices.data(), DType::int32, few), o);
  softfold::softmax(view, View(p.data(), DType::float32, shape), o.rows);
  softfold::log_softmax(view, View(lp.data(), DType::float32, shape), o.rows);
  softfold::logsumexp(view, View(expected.data(), DType::float32, rows), o.rows);
  EXPECT_EQ(lse, expected);
  for (std::size_t j = 0; j < 2 * k; ++j) {
    const std::size_t at = j / k * n + static_cast<std::size_t>(indices[j]);
    EXPECT_EQ(probabilities[j], p[at]);
    EXPECT_EQ(logs[j], lp[at]);
  }
}

TEST(Topk, FewerThanKExist) {
  const float x[] = {3, 9, 5, 7};
  const std::int32_t length[] = {2};
  const Shape shape{1, 4}, few{1, 3}, row{1};
  float values[3], p[3];
  std::int64_t indices[3];
  TopkOptions o;
  o.rows.length = View(length, DType::int32, row);
  o.probabilities = View(p, DType::float32, few);
  softfold::topk(View(x, DType::float32, shape), View(values, DType::float32, few), View(indices, DType::int64, few),
                 o);
  EXPECT_EQ(values[0], 9.F);
  EXPECT_EQ(indices[1], 0);
  EXPECT_EQ(values[2], -INFINITY);
  EXPECT_EQ(indices[2], -1);
  EXPECT_EQ(p[2], 0.F);
}

using Best = fold::TopK<float, 5>;

Best::State random_state(Random& random, std::int64_t first) {
  auto s = Best::identity();
  for (std::int64_t i = 0, n = random.below(9); i < n; ++i)
    s = Best().push(s, fold::Ranked<float>::of(static_cast<float>(random.below(4)), first + i));
  return s;
}

bool equal(const Best::State& a, const Best::State& b) {
  return a.count == b.count && std::equal(a.best, a.best + a.count, b.best);
}

TEST(Topk, TheFoldKeepsItsLaws) {
  static_assert(fold::Fold<Best>);
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto a = random_state(random, 0), b = random_state(random, 100), c = random_state(random, 200);
    EXPECT_TRUE(equal(Best::merge(Best::identity(), a), a));
    EXPECT_TRUE(equal(Best::merge(a, b), Best::merge(b, a)));
    EXPECT_TRUE(equal(Best::merge(Best::merge(a, b), c), Best::merge(a, Best::merge(b, c))));
  }
}

TEST(Topk, AnEntryHoldsItsElement) {
  for (const float v : {1.F, -1.F, 3e38F, -3e38F, 1e-45F, INFINITY, -INFINITY, 0.F})
    EXPECT_TRUE(same(fold::Ranked<float>::of(v, 3).value(), v)) << v;
  EXPECT_TRUE(same(fold::Ranked<float>::of(-0.F, 3).value(), 0.F));
  EXPECT_TRUE(std::isnan(fold::Ranked<double>::of(NAN, 3).value()));
}

TEST(RefuseTopk, WhatItCannotDo) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::topk;
  p.own = TopkOptions{};
  p.outputs.clear();
  p.outputs.emplace_back(DType::float32, Shape{4, 3});
  p.outputs.emplace_back(DType::int64, Shape{4, 3});
  Spoilt s(std::move(p));
  std::vector<std::int64_t> room(64);
  const Shape seven{4, 7}, two{4, 2}, flat{12};
  s.expect("k above n", Code::shape, {"k = 7", "0 to 6"},
           [&](Bound& b) { b.outputs[0] = View(room.data(), DType::float32, seven); });
  s.expect("indices of another k", Code::shape, {"indices of shape [4, 2]", "3 along the axis"},
           [&](Bound& b) { b.outputs[1] = View(room.data(), DType::int64, two); });
  s.expect("values of another rank", Code::shape, {"values of shape [12]"},
           [&](Bound& b) { b.outputs[0] = View(room.data(), DType::float32, flat); });
  s.expect("indices of float32", Code::dtype, {"indices of dtype float32", "int32, int64"},
           [&](Bound& b) { b.outputs[1] = View(room.data(), DType::float32, b.outputs[0].shape); });
  s.expect("values over x", Code::strides, {"values overlaps x"},
           [&](Bound& b) { b.outputs[0] = View(b.inputs[0].data, DType::float32, b.outputs[0].shape); });
  s.expect("a rung", Code::unsupported, {"rung"}, [&](Bound& b) { b.rows.rung = softfold::Rung::safe; });
  s.expect("one output", Code::shape, {"1 outputs", "values, indices"}, [&](Bound& b) { b.outputs.pop_back(); });
}

}  // namespace
}  // namespace softfold_test
