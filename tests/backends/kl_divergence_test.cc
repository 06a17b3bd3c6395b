// The divergence against long double, close rows above all; its gradients, its special rows, and what it refuses.
#include "own_plan.hpp"
#include "refuse/refusal.hpp"
#include "support/sum_of.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace softfold_test {
namespace {

using softfold::KlDivergenceOptions;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// p, ln p - ln q and q of every element, by sums of expm1: nothing cancels where the rows are close.
struct Exact {
  std::vector<long double> p, q, r;
  long double divergence = 0, mean_size = 0;

  template <class T>
  Exact(const std::vector<T>& a, const std::vector<T>& b, long double scale) {
    const auto lse = [&](const std::vector<T>& x) {
      return lse_of(x.size(), [&](std::size_t i) { return scale * static_cast<long double>(x[i]); });
    };
    const long double lse_a = lse(a), lse_b = lse(b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<long double>(a[i]), y = static_cast<long double>(b[i]);
      p.push_back(std::exp(scale * x - lse_a)), q.push_back(std::exp(scale * y - lse_b));
      r.push_back(p[i] > 0 ? scale * (x - y) - (lse_a - lse_b) : 0);
      divergence += p[i] > 0 ? p[i] * (std::expm1(-r[i]) + r[i]) : q[i];
      mean_size += p[i] * std::abs(r[i]);
    }
  }
};

template <class T>
struct Result {
  T divergence;
  std::vector<T> dp, dq;
};

template <class T>
Result<T> divergence_of(const std::vector<T>& a, const std::vector<T>& b, KlDivergenceOptions o = {}) {
  constexpr DType t = sizeof(T) == 8 ? DType::float64 : DType::float32;
  const Shape shape{1, std::ssize(a)}, one{1};
  Result<T> result{7, std::vector<T>(a.size()), std::vector<T>(a.size())};
  o.dp = View(result.dp.data(), t, shape), o.dq = View(result.dq.data(), t, shape);
  softfold::kl_divergence(View(a.data(), t, shape), View(b.data(), t, shape), View(&result.divergence, t, one), o);
  return result;
}

/// What docs/kl_divergence.md says of random rows. The bounds are in docs/accuracy.md, tests/oracle asks for them.
template <class T>
void expect_accurate(std::size_t n, double spread, double distance, double offset, double scale) {
  Random random(n * 31 + static_cast<std::uint64_t>(spread));
  std::vector<T> a(n), b(n);
  for (std::size_t i = 0; i < n; ++i) {
    a[i] = static_cast<T>(spread * random.uniform(-1, 1));
    b[i] = static_cast<T>(static_cast<double>(a[i]) + distance * random.uniform(-1, 1) + offset);
  }
  if (n > 50) a[7] = -std::numeric_limits<T>::infinity();
  KlDivergenceOptions o;
  o.rows.scale = scale;
  const auto got = divergence_of(a, b, o);
  const Exact exact(a, b, scale);
  const auto what = std::to_string(n) + " " + std::to_string(spread) + " " + std::to_string(distance) + " " +
                    std::to_string(offset) + " " + std::to_string(scale);
  const long double u = sizeof(T) == 4 ? 0x1p-24L : 0x1p-53L, common = (8 + 3 * std::log(n)) * u;
  const long double terms = (8 + 2 * scale * spread + 2.5 * std::log(n)) * u;
  // What all logarithms have in common counts to second order; so do the low parts of the offset, and the oracle's own.
  const long double floor = common * common + scale * (spread + offset + 1) * (4 * u * u + 0x1p-61L);
  EXPECT_LE(std::abs(got.divergence - exact.divergence), 8 * terms * exact.divergence + floor) << what;
  EXPECT_GE(got.divergence, 0) << what;
  for (std::size_t i = 0; i < n; ++i) {
    if (exact.p[i] == 0) continue;
    const long double size = std::abs(exact.r[i]) + exact.mean_size, error = 2 * terms * size + floor;
    const long double dp = exact.p[i] * (exact.r[i] - exact.divergence), dq = exact.p[i] * std::expm1(-exact.r[i]);
    EXPECT_LE(std::abs(got.dp[i] - scale * dp), scale * exact.p[i] * error) << what << " " << i;
    const long double of_q = std::min(2 * terms, error) * (exact.p[i] + exact.q[i]);
    EXPECT_LE(std::abs(got.dq[i] - scale * dq), scale * of_q) << what << " " << i;
  }
}

TEST(KlDivergence, IsAccurateAlsoWhereTheRowsAreClose) {
  for (const std::size_t n : {1U, 2U, 100U, 5000U})
    for (const double spread : {0., 1., 15.})
      for (const double distance : {1e-5, 1e-3, 0.1, 1., 6.})
        for (const double offset : {0., 1e4})
          for (const double scale : {1., 0.7}) {
            expect_accurate<float>(n, spread, distance, offset, scale);
            expect_accurate<double>(n, spread, distance, offset, scale);
          }
}

TEST(KlDivergence, OfARowFromItselfIsZeroAndSoAreTheGradients) {
  std::vector<float> a(3000);
  Random random(5);
  for (float& v : a) v = static_cast<float>(random.uniform(-9, 9));
  const auto got = divergence_of(a, a);
  EXPECT_EQ(got.divergence, 0.F);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(got.dp[i] == 0 && got.dq[i] == 0) << i;
}

TEST(KlDivergence, SpecialRows) {
  using V = std::vector<float>;
  const float none = -kInfinity;
  EXPECT_NEAR(divergence_of(V{none, 1, 2}, V{0, 1, 2}).divergence, 0.09434427, 1e-7);  // -ln(1 - q_0)
  const auto apart = divergence_of(V{0, 1, 2}, V{none, 1, 2});
  EXPECT_EQ(apart.divergence, kInfinity);
  for (const float dp : apart.dp) EXPECT_TRUE(std::isnan(dp));
  EXPECT_NEAR(apart.dq[0], -0.09003057, 1e-6);
  EXPECT_EQ(divergence_of(V{none, 1}, V{none, 1}).divergence, 0.F);
  const auto nothing = divergence_of(V{none, none}, V{0, 1});
  EXPECT_EQ(nothing.divergence, 0.F);
  EXPECT_EQ(nothing.dp, (V{0, 0}));
  EXPECT_EQ(nothing.dq, (V{0, 0}));
  const auto nowhere = divergence_of(V{0, 1}, V{none, none});
  EXPECT_EQ(nowhere.divergence, kInfinity);
  EXPECT_EQ(nowhere.dq, (V{0, 0}));
  KlDivergenceOptions o;
  o.rows.empty = softfold::Empty::nan;
  EXPECT_TRUE(std::isnan(divergence_of(V{none, none}, V{0, 1}, o).divergence));
  for (const float bad : {NAN, kInfinity}) {
    EXPECT_TRUE(std::isnan(divergence_of(V{1, bad}, V{1, 2}).divergence));
    EXPECT_TRUE(std::isnan(divergence_of(V{1, 2}, V{1, bad}).dp[0]));
  }
  constexpr float most = std::numeric_limits<float>::max();
  EXPECT_EQ(divergence_of(V{most, most}, V{-most, -most}).divergence, 0.F);
  EXPECT_FLOAT_EQ(divergence_of(V{most, 0}, V{-most, 0}).divergence, most);
  EXPECT_NEAR(divergence_of(V{most, 0}, V{most, most}).divergence, std::log(2.), 1e-6);
}

TEST(KlDivergence, OfVastScoresInChunksOfTheirOwn) {
  for (const double size : {2e302, 1e305}) {
    std::vector<double> a(2048, -std::numeric_limits<double>::infinity()), b = a;
    a[5] = b[1500] = size, a[1500] = b[5] = -size;
    EXPECT_DOUBLE_EQ(divergence_of(a, b).divergence, 2 * size);
    a[1500] = a[5], b[1500] = size, b[5] = size / 2;
    EXPECT_DOUBLE_EQ(divergence_of(a, b).divergence, size / 4);
  }
}

TEST(KlDivergence, TheGradientsAreItsDerivatives) {
  std::vector<double> a(41), b(41), states_a(4), states_b(4), da(41), db(41);
  Random random(9);
  for (double& v : a) v = random.uniform(-3, 3);
  for (double& v : b) v = random.uniform(-3, 3);
  const Shape shape{1, 41}, row{1}, four{1, 4};
  double incoming = 1.5;
  KlDivergenceOptions o;
  o.rows.scale = 1.3;
  o.dkl = View(&incoming, DType::float64, row);
  o.p_states = View(states_a.data(), DType::float64, four), o.q_states = View(states_b.data(), DType::float64, four);
  const auto got = divergence_of(a, b, o);
  KlDivergenceOptions plain;
  plain.rows.scale = 1.3;
  const View p(a.data(), DType::float64, shape), q(b.data(), DType::float64, shape);
  softfold::kl_divergence_backward(p, q, o.p_states, o.q_states, o.dkl, View(da.data(), DType::float64, shape),
                                   View(db.data(), DType::float64, shape), plain);
  EXPECT_EQ(got.dp, da);
  EXPECT_EQ(got.dq, db);
  const auto slope = [&](std::vector<double>& x, std::size_t i) {
    constexpr double step = 1e-5;
    const double middle = x[i];
    x[i] = middle + step;
    const double above = divergence_of(a, b, plain).divergence;
    x[i] = middle - step;
    const double below = divergence_of(a, b, plain).divergence;
    x[i] = middle;
    return 1.5 * (above - below) / (2 * step);
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(da[i], slope(a, i), 1e-9) << i;
    EXPECT_NEAR(db[i], slope(b, i), 1e-9) << i;
  }
}

TEST(KlDivergence, TheGradientsOfMaskedRowsAreTheirDerivatives) {
  constexpr std::int64_t rows = 4, n = 23;
  Array p(DType::float64, {rows, n}, Layout::padded), q(DType::float64, {rows, n}, Layout::transposed),
      mask(DType::boolean, {rows, n}), kl(DType::float64, {rows}),
      dkl = kl, dp(DType::float64, {rows, n}), dq = dp, dp_later = dp, dq_later = dp, length(DType::int64, {rows}),
      p_states(DType::float64, {rows, 4}), q_states = p_states;
  Random random(12);
  for (std::int64_t k = 0; k < p.count(); ++k) {
    mask.set(k, std::uint8_t{random.below(3) != 0});
    const bool there = mask.get<std::uint8_t>(k) != 0;
    p.set(k, there ? random.uniform(-3, 3) : NAN), q.set(k, there ? random.uniform(-3, 3) : NAN);
  }
  for (std::int64_t r = 0; r < rows; ++r) dkl.set(r, 1.5 - static_cast<double>(r)), length.set(r, n - 3 * r);
  KlDivergenceOptions plain;
  plain.rows.scale = 1.3, plain.rows.mask = mask.view(), plain.rows.length = length.view();
  KlDivergenceOptions o = plain;
  o.dp = dp.view(), o.dq = dq.view(), o.dkl = dkl.view(), o.p_states = p_states.view(), o.q_states = q_states.view();
  softfold::kl_divergence(p.view(), q.view(), kl.view(), o);
  softfold::kl_divergence_backward(p.view(), q.view(), p_states.view(), q_states.view(), dkl.view(), dp_later.view(),
                                   dq_later.view(), plain);
  EXPECT_EQ(dp.elements(), dp_later.elements());
  EXPECT_EQ(dq.elements(), dq_later.elements());
  const auto slope = [&](Array& x, std::int64_t k) {
    constexpr double step = 1e-5;
    const auto middle = x.get<double>(k);
    double sum = 0;
    for (const double by : {step, -step}) {
      x.set(k, middle + by);
      softfold::kl_divergence(p.view(), q.view(), kl.view(), plain);
      for (std::int64_t r = 0; r < rows; ++r) sum += dkl.get<double>(r) * kl.get<double>(r) / (2 * by);
    }
    x.set(k, middle);
    return sum;
  };
  for (std::int64_t k = 0; k < p.count(); ++k) {
    EXPECT_NEAR(dp.get<double>(k), slope(p, k), 2e-9) << k;
    EXPECT_NEAR(dq.get<double>(k), slope(q, k), 2e-9) << k;
    if (mask.get<std::uint8_t>(k) != 0 && k % n < length.get<std::int64_t>(k / n)) continue;
    EXPECT_EQ(dp.get<double>(k), 0.) << k;
    EXPECT_EQ(dq.get<double>(k), 0.) << k;
  }
}

TEST(KlDivergence, InPlaceOverBothAndOfTwoDtypes) {
  const Shape shape{3, 1500}, rows{3};
  std::vector<float> a(4500), b(4500), kl(3), again(3);
  Random random(2);
  for (float& v : a) v = static_cast<float>(random.below(64)) / 8;
  for (float& v : b) v = static_cast<float>(random.below(64)) / 8;
  std::vector<float> dp(4500), dq(4500);
  std::vector<softfold::fold::BFloat16> half(4500);
  for (std::size_t i = 0; i < b.size(); ++i) half[i] = softfold::fold::narrow<softfold::fold::BFloat16>(b[i]);
  const View p(a.data(), DType::float32, shape), q(b.data(), DType::float32, shape);
  KlDivergenceOptions o;
  o.dp = View(dp.data(), DType::float32, shape), o.dq = View(dq.data(), DType::float32, shape);
  softfold::kl_divergence(p, View(half.data(), DType::bfloat16, shape), View(kl.data(), DType::float32, rows), o);
  o.dp = p, o.dq = q;
  softfold::kl_divergence(p, q, View(again.data(), DType::float32, rows), o);
  EXPECT_EQ(kl, again);
  EXPECT_EQ(dp, a);
  EXPECT_EQ(dq, b);
}

TEST(RefuseKlDivergence, WhatItCannotDo) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::kl_divergence;
  p.own = KlDivergenceOptions{};
  p.inputs.push_back(p.inputs[0]);
  p.outputs.clear();
  p.outputs.emplace_back(DType::float32, Shape{4});
  Spoilt s(std::move(p));
  std::vector<float> values(64);
  const Shape five{5}, full{4, 6}, other{4, 5};
  const auto own = [](Bound& b) -> KlDivergenceOptions& { return std::get<KlDivergenceOptions>(b.own); };
  s.expect("a divergence of another shape", Code::shape, {"kl of shape [5]", "[4]"},
           [&](Bound& b) { b.outputs[0] = View(values.data(), DType::float32, five); });
  s.expect("rows of other sizes", Code::shape, {"q of shape [4, 5]"},
           [&](Bound& b) { b.inputs[1] = View(values.data(), DType::float32, other); });
  s.expect("one of float64", Code::dtype, {"q of dtype float64", "both float64"},
           [&](Bound& b) { b.inputs[1] = View(static_cast<const void*>(values.data()), DType::float64, full); });
  s.expect("dkl for no gradient", Code::option, {"dkl without dp or dq"},
           [&](Bound& b) { own(b).dkl = View(values.data(), DType::float32, b.outputs[0].shape); });
  s.expect("dp over q", Code::strides, {"dp overlaps q"},
           [&](Bound& b) { own(b).dp = View(b.inputs[1].data, DType::float32, full); });
  s.expect("dq over p", Code::strides, {"dq overlaps p"},
           [&](Bound& b) { own(b).dq = View(b.inputs[0].data, DType::float32, full); });
  s.expect("states of float32", Code::dtype, {"p_states of dtype float32", "float64"},
           [&](Bound& b) { own(b).p_states = View(values.data(), DType::float32, full); });
  s.expect("a rung", Code::unsupported, {"rung"}, [&](Bound& b) { b.rows.rung = softfold::Rung::safe; });
}

}  // namespace
}  // namespace softfold_test
