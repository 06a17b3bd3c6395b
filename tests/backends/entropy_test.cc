// The entropy against long double and finite differences, its special rows, and what it refuses.
#include "own_plan.hpp"
#include "refuse/refusal.hpp"
#include "support/sum_of.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace softfold_test {
namespace {

using softfold::EntropyOptions;

long double exact_entropy(const std::vector<double>& x, double scale) {
  const auto score = [&](std::size_t i) { return static_cast<long double>(scale) * x[i]; };
  const long double lse = lse_of(x.size(), score);
  return -sum_of(x.size(), [&](std::size_t i) {
    const long double lp = score(i) - lse;
    return std::isinf(lp) ? 0 : std::exp(lp) * lp;
  });
}

template <class T>
double entropy_of(const std::vector<double>& x, double scale) {
  const std::vector<T> stored(x.begin(), x.end());
  constexpr DType t = sizeof(T) == 8 ? DType::float64 : DType::float32;
  const Shape shape{1, std::ssize(x)}, one{1};
  T h = 7;
  EntropyOptions o;
  o.rows.scale = scale;
  softfold::entropy(View(stored.data(), t, shape), View(&h, t, one), o);
  return static_cast<double>(h);
}

TEST(Entropy, IsMinusTheSumOfPLnP) {
  Random random(3);
  for (const std::size_t n : {1U, 2U, 100U, 5000U})
    for (const double spread : {0., 1., 30.})
      for (const double offset : {0., 1e4}) {
        std::vector<double> x(n);
        for (double& v : x) v = static_cast<double>(static_cast<float>(offset + spread * random.uniform(-1, 1)));
        if (n > 50) x[7] = -INFINITY;
        const auto exact = static_cast<double>(exact_entropy(x, 0.5));
        EXPECT_NEAR(entropy_of<float>(x, 0.5), exact, 1e-5 * (1 + exact)) << n << " " << spread << " " << offset;
        EXPECT_NEAR(entropy_of<double>(x, 0.5), exact, 2e-14 * (1 + exact)) << n << " " << spread << " " << offset;
      }
  for (const double lone : {5., 5.25, 5.5, -3e7}) {  // never below 0
    EXPECT_GE(entropy_of<float>({lone}, 1), 0.);
    EXPECT_LT(entropy_of<float>({lone}, 1), 1e-6);
  }
  EXPECT_EQ(entropy_of<float>({-INFINITY, -INFINITY}, 1), 0.);
  EXPECT_TRUE(std::isnan(entropy_of<float>({1., NAN}, 1)));
  EXPECT_TRUE(std::isnan(entropy_of<float>({1., INFINITY}, 1)));
}

TEST(Entropy, TheGradientIsItsDerivative) {
  std::vector<double> x(41), dx(41), again(41), states(4);
  Random random(9);
  for (double& v : x) v = random.uniform(-3, 3);
  const Shape shape{1, 41}, row{1}, four{1, 4};
  const View view_x(x.data(), DType::float64, shape);
  double h = 0, incoming = 1.5;
  EntropyOptions o;
  o.rows.scale = 1.3;
  o.dx = View(dx.data(), DType::float64, shape);
  o.dentropy = View(&incoming, DType::float64, row);
  o.states = View(states.data(), DType::float64, four);
  softfold::entropy(view_x, View(&h, DType::float64, row), o);
  EntropyOptions plain;
  plain.rows.scale = 1.3;
  softfold::entropy_backward(view_x, o.states, o.dentropy, View(again.data(), DType::float64, shape), plain);
  EXPECT_EQ(dx, again);
  for (std::size_t i = 0; i < x.size(); ++i) {
    constexpr double step = 1e-5;
    std::vector<double> above = x, below = x;
    above[i] += step, below[i] -= step;
    EXPECT_NEAR(dx[i], 1.5 * (entropy_of<double>(above, 1.3) - entropy_of<double>(below, 1.3)) / (2 * step), 1e-9) << i;
  }
}

TEST(Entropy, TheGradientOfAnotherRowThanItsStateIsNaN) {
  const auto backward = [](float saved, float x) {
    float dx = 7;
    double states[4], dentropy = 1;
    const Shape shape{1, 1}, row{1}, four{1, 4};
    softfold::RowOptions plain;
    const View state(states, DType::float64, four);
    softfold::state(View(&saved, DType::float32, shape), state, plain);
    softfold::entropy_backward(View(&x, DType::float32, shape), state, View(&dentropy, DType::float64, row),
                               View(&dx, DType::float32, shape));
    return dx;
  };
  EXPECT_NEAR(backward(0.3466F, 0.3466F), 0., 1e-6);
  EXPECT_TRUE(std::isnan(backward(0.345703125F, 0.3466F)));  // a logit of half a power of two: m is 0, then 1
  EXPECT_TRUE(std::isnan(backward(1.F, NAN)));
  EXPECT_TRUE(std::isnan(backward(1.F, INFINITY)));
}

TEST(Entropy, TheGradientsOfMaskedRowsAreTheirDerivatives) {
  constexpr std::int64_t rows = 4, n = 23;
  Array x(DType::float64, {rows, n}, Layout::padded), mask(DType::boolean, {rows, n}), h(DType::float64, {rows}),
      dentropy(DType::float64, {rows}), dx(DType::float64, {rows, n}),
      again = dx, length(DType::int64, {rows}), scales(DType::float32, {rows}), states(DType::float64, {rows, 4});
  Random random(11);
  for (std::int64_t k = 0; k < x.count(); ++k) {
    mask.set(k, std::uint8_t{random.below(3) != 0});
    x.set_value(k, mask.get<std::uint8_t>(k) != 0 ? random.uniform(-3, 3) : NAN);  // what is not there may be anything
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    dentropy.set(r, 1.5 - static_cast<double>(r)), scales.set(r, 0.5F + 0.25F * static_cast<float>(r));
    length.set(r, n - 3 * r);
  }
  EntropyOptions plain;
  plain.rows.scale = 1.3, plain.rows.scales = scales.view();
  plain.rows.mask = mask.view(), plain.rows.length = length.view();
  EntropyOptions o = plain;
  o.dx = dx.view(), o.dentropy = dentropy.view(), o.states = states.view();
  softfold::entropy(x.view(), h.view(), o);
  softfold::entropy_backward(x.view(), states.view(), dentropy.view(), again.view(), plain);
  EXPECT_EQ(dx.elements(), again.elements());
  const auto of = [&](std::int64_t k, double value) {  // of all rows: none knows of another
    x.set(k, value);
    softfold::entropy(x.view(), h.view(), plain);
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += dentropy.get<double>(r) * h.get<double>(r);
    return sum;
  };
  for (std::int64_t k = 0; k < x.count(); ++k) {
    constexpr double step = 1e-5;
    const auto middle = x.get<double>(k);
    const double slope = (of(k, middle + step) - of(k, middle - step)) / (2 * step);
    x.set(k, middle);
    EXPECT_NEAR(dx.get<double>(k), slope, 1e-9) << k;
    if (mask.get<std::uint8_t>(k) != 0 && k % n < length.get<std::int64_t>(k / n)) continue;
    EXPECT_EQ(dx.get<double>(k), 0.) << k;
  }
}

TEST(RefuseEntropy, WhatItCannotDo) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::entropy;
  p.own = EntropyOptions{};
  p.outputs.clear();
  p.outputs.emplace_back(DType::float32, Shape{4});
  Spoilt s(std::move(p));
  std::vector<float> values(64);
  const Shape five{5}, full{4, 6};
  s.expect("an entropy of another shape", Code::shape, {"entropy of shape [5]", "[4]"},
           [&](Bound& b) { b.outputs[0] = View(values.data(), DType::float32, five); });
  s.expect("an entropy of integers", Code::dtype, {"entropy of dtype int32"},
           [&](Bound& b) { b.outputs[0].dtype = DType::int32; });
  s.expect("dentropy for no dx", Code::option, {"dentropy without dx"}, [&](Bound& b) {
    std::get<EntropyOptions>(b.own).dentropy = View(values.data(), DType::float32, b.outputs[0].shape);
  });
  s.expect("dx over a part of x", Code::strides, {"dx overlaps x"}, [&](Bound& b) {
    std::get<EntropyOptions>(b.own).dx = View(static_cast<float*>(b.inputs[0].data) + 1, DType::float32, full);
  });
  s.expect("a rung", Code::unsupported, {"rung"}, [&](Bound& b) { b.rows.rung = softfold::Rung::safe; });
}

}  // namespace
}  // namespace softfold_test
