// Cross-entropy against long double and finite differences, what its parts share with the other operations bit for bit,
// its special rows, and what it refuses.
#include "backends/loss_reference.hpp"
#include "own_plan.hpp"
#include "refuse/refusal.hpp"

#include "softfold/fold/logsumexp.hpp"
#include "softfold/lift/tree.hpp"
#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace softfold_test {
namespace {

namespace lift = softfold::lift;

/// Logits and targets of float64 or float32, and everything that cross_entropy gives for them.
template <class T>
struct Batch {
  static constexpr DType kType = sizeof(T) == 8 ? DType::float64 : DType::float32;
  std::int64_t rows, n;
  std::vector<T> x, dx, loss, lp;
  std::vector<std::int64_t> targets;
  std::vector<double> states;
  CrossEntropyOptions options;

  Batch(std::int64_t rows_, std::int64_t n_, double spread, std::uint64_t seed = 1)
      : rows(rows_), n(n_), x(at(rows * n)), dx(x.size()), loss(at(rows)), lp(at(rows)), states(at(4 * rows)) {
    Random random(seed);
    for (T& v : x) v = static_cast<T>(random.uniform(-spread, spread));
    for (std::int64_t r = 0; r < rows; ++r) targets.push_back(random.below(n));
    full_shape = {rows, n}, rows_shape = {rows}, states_shape = {rows, 4};
  }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  View view_x() { return View(x.data(), kType, full_shape); }
  View view_dx() { return View(dx.data(), kType, full_shape); }
  View view_targets() { return View(targets.data(), DType::int64, rows_shape); }
  View view_states() { return View(states.data(), DType::float64, states_shape); }
  Batch& run() {
    Shape loss_shape = options.reduction == Reduction::none ? rows_shape : Shape{};
    options.log_probability = View(lp.data(), kType, rows_shape);
    options.states = view_states();
    options.dx = view_dx();
    softfold::cross_entropy(view_x(), view_targets(), View(loss.data(), kType, loss_shape), options);
    return *this;
  }

  Shape full_shape, rows_shape, states_shape;
};

void check_against_long_double(DType type, double bound) {
  for (const std::int64_t n : {2, 50, 1024, 3001})
    for (int bits = 0; bits < 8; ++bits)
      for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        LossKind kind;
        kind.x = kind.dx = kind.loss = type;
        kind.reduction = reduction;
        LossCase c(kind, 13, n, static_cast<std::uint64_t>(n + bits), 6.);
        c.has_weight = (bits & 1) != 0;
        if ((bits & 2) != 0) c.options.label_smoothing = 0.2;
        if ((bits & 4) != 0) c.options.z_loss = 1e-3;
        c.options.rows.scale = 0.75;
        c.set_targets(static_cast<std::uint64_t>(n), 4);
        c.run();
        const double exact = LossReference(c).loss[0];
        EXPECT_NEAR(number(c.loss, 0), exact, bound * exact) << n << ", options " << bits;
      }
}

TEST(CrossEntropy, IsTheLossByTheFormula) {
  check_against_long_double(DType::float32, 2e-6);
  check_against_long_double(DType::float64, 4e-15);
}

TEST(CrossEntropy, TheGradientIsTheLosssDerivative) {
  for (int bits = 0; bits < 8; ++bits) {
    Batch<double> b(4, 37, 3., 5);
    std::vector<double> weight(37);
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.5 + 0.125 * static_cast<double>(i % 7);
    const Shape classes{37};
    if ((bits & 1) != 0) b.options.weight = View(weight.data(), DType::float64, classes);
    if ((bits & 2) != 0) b.options.label_smoothing = 0.3;
    if ((bits & 4) != 0) b.options.z_loss = 0.02;
    b.options.rows.scale = 1.7;
    b.targets[1] = b.options.ignore_index;
    b.run();
    const std::vector<double> gradient = b.dx;
    constexpr double h = 1e-5;
    for (std::size_t k = 0; k < b.x.size(); ++k) {
      const double before = b.x[k];
      b.x[k] = before + h;
      const double above = b.run().loss[0];
      b.x[k] = before - h;
      const double below = b.run().loss[0];
      b.x[k] = before;
      EXPECT_NEAR(gradient[k], (above - below) / (2 * h), 1e-9) << k << ", options " << bits;
    }
  }
}

TEST(CrossEntropy, SharesItsBitsWithTheOtherOperations) {
  Batch<float> b(9, 2300, 8.);
  b.options.reduction = Reduction::none;
  b.run();
  std::vector<float> log_softmax(b.x.size()), dlse(9, 0.5F);
  std::vector<double> states(36);
  softfold::log_softmax(b.view_x(), View(log_softmax.data(), DType::float32, b.full_shape));
  softfold::state(b.view_x(), View(states.data(), DType::float64, b.states_shape));
  EXPECT_EQ(b.states, states);
  for (std::size_t r = 0; r < 9; ++r) {
    const float lp = log_softmax[r * 2300 + static_cast<std::size_t>(b.targets[r])];
    EXPECT_EQ(b.lp[r], lp);
    EXPECT_EQ(b.loss[r], -lp);
  }
  // Given afterwards or at once, whole or in place: one gradient.
  b.options.dloss = View(dlse.data(), DType::float32, b.rows_shape);
  b.run();
  CrossEntropyOptions plain;
  plain.reduction = Reduction::none;
  std::vector<float> later(b.x.size());
  softfold::cross_entropy_backward(b.view_x(), b.view_targets(), b.view_states(), b.options.dloss,
                                   View(later.data(), DType::float32, b.full_shape), plain);
  EXPECT_EQ(b.dx, later);
  plain.dx = b.view_x();
  plain.dloss = b.options.dloss;
  softfold::cross_entropy(b.view_x(), b.view_targets(), View(b.loss.data(), DType::float32, b.rows_shape), plain);
  EXPECT_EQ(b.x, later);
}

TEST(CrossEntropy, ACertainTargetKeepsAGradient) {
  for (const DType out : {DType::float32, DType::bfloat16}) {
    const float x[] = {0.F, 14.F, -3.F};
    const std::int32_t target[] = {1};
    const Shape shape{1, 3}, row{1}, one{};
    float loss = 0;
    std::uint32_t dx[3] = {};
    CrossEntropyOptions o;
    o.dx = View(dx, out, shape);
    softfold::cross_entropy(View(x, DType::float32, shape), View(target, DType::int32, row),
                            View(&loss, DType::float32, one), o);
    const float at_target =
        out == DType::float32 ? std::bit_cast<float>(dx[1]) : std::bit_cast<float>(dx[0] & 0xFFFF0000);
    EXPECT_NEAR(at_target, -8.7e-7, 2e-7);  // 1 - p = e^-14 + e^-17, within the contract
    EXPECT_NEAR(loss, 8.7e-7, 2e-7);
  }
}

TEST(CrossEntropy, SpecialRowsAndTargets) {
  Batch<float> b(6, 5, 1.);
  b.options.reduction = Reduction::none;
  b.targets = {0, 1, 2, 3, b.options.ignore_index, 0};
  b.x[0] = -INFINITY;                                        // row 0: the target has no probability
  b.x[5] = NAN;                                              // row 1: a NaN
  b.x[10] = INFINITY;                                        // row 2: +inf elsewhere
  for (std::size_t i = 15; i < 20; ++i) b.x[i] = -INFINITY;  // row 3: empty
  b.x[20] = NAN;                                             // row 4: ignored, not even read
  b.run();
  EXPECT_EQ(b.loss[0], INFINITY);
  EXPECT_EQ(b.dx[0], -1.F);
  for (const std::size_t r : {1U, 2U}) {
    EXPECT_TRUE(std::isnan(b.loss[r]) && std::isnan(b.dx[5 * r + 4])) << r;
  }
  EXPECT_EQ(b.loss[3], INFINITY);
  EXPECT_EQ(b.loss[4], 0.F);
  EXPECT_TRUE(std::isfinite(b.loss[5]));
  for (std::size_t i = 15; i < 25; ++i) EXPECT_EQ(b.dx[i], 0.F);
  b.options.rows.empty = softfold::Empty::nan;
  b.run();
  EXPECT_TRUE(std::isnan(b.loss[3]));
  EXPECT_EQ(b.dx[15], 0.F);
}

TEST(CrossEntropy, NothingToAddUp) {
  for (const std::int64_t rows : {0, 3}) {
    Batch<float> b(rows, 4, 1.);
    b.loss.assign(1, 7.F);
    for (auto& t : b.targets) t = b.options.ignore_index;
    b.run();
    EXPECT_EQ(b.loss[0], 0.F) << rows;
    b.options.rows.empty = softfold::Empty::nan;
    b.run();
    EXPECT_TRUE(std::isnan(b.loss[0])) << rows;
    b.options.reduction = Reduction::sum;
    b.run();
    EXPECT_EQ(b.loss[0], 0.F) << rows;
    for (const float v : b.dx) EXPECT_EQ(v, 0.F);
  }
}

TEST(CrossEntropy, ReportsNoStrayTargetsWhereItRefusesThem) {
  Batch<float> b(3, 4, 1.);
  std::int32_t status = 7;
  const Shape one{};
  b.options.status = View(&status, DType::int32, one);
  b.run();
  EXPECT_EQ(status, 0);
}

TEST(CrossEntropy, AddsRowsByTheCanonicalTree) {
  Batch<float> b(2600, 3, 5.);
  b.options.reduction = Reduction::none;
  std::vector<double> each(2600);
  b.options.rows.scale = 1;
  softfold::cross_entropy(b.view_x(), b.view_targets(), View(each.data(), DType::float64, b.rows_shape), b.options);
  lift::TreeBuilder<fold::Sum<double>> tree;
  for (std::size_t i = 0; i < each.size(); i += lift::kChunk) {
    std::vector<double> leaves(each.begin() + static_cast<std::ptrdiff_t>(i),
                               each.begin() + static_cast<std::ptrdiff_t>(std::min(each.size(), i + lift::kChunk)));
    tree.push(lift::halve<fold::Sum<double>>(leaves.data(), static_cast<int>(leaves.size())));
  }
  double sum = 0;
  b.options.reduction = Reduction::sum;
  softfold::cross_entropy(b.view_x(), b.view_targets(), View(&sum, DType::float64, Shape{}), b.options);
  EXPECT_EQ(sum, tree.root());
}

TEST(RefuseCrossEntropy, WhatItCannotDo) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::cross_entropy;
  p.own = CrossEntropyOptions{};
  p.inputs.emplace_back(DType::int64, Shape{4});
  for (std::int64_t r = 0; r < 4; ++r) p.inputs.back().set_value(r, static_cast<double>(r));
  p.outputs.clear();
  p.outputs.emplace_back(DType::float32, Shape{});
  Spoilt s(std::move(p));
  const auto options = [](Bound& b) -> CrossEntropyOptions& { return std::get<CrossEntropyOptions>(b.own); };
  std::vector<std::int64_t> bad{0, 6, 1, 2}, negative{0, 1, -1, 2};
  std::vector<float> values(64);
  const Shape four{4}, five{5}, full{4, 6}, one{};
  s.expect("a target above the classes", Code::data, {"target 6 for row 1", "0 .. 5", "ignore_index"},
           [&](Bound& b) { b.inputs[1] = View(bad.data(), DType::int64, four); });
  s.expect("a negative target", Code::data, {"target -1 for row 2"},
           [&](Bound& b) { b.inputs[1] = View(negative.data(), DType::int64, four); });
  s.expect("targets that are no classes", Code::dtype, {"targets of dtype bool", "int32, int64"},
           [&](Bound& b) { b.inputs[1] = View(values.data(), DType::boolean, four); });
  s.expect("one probability a row", Code::shape, {"targets of shape [4]", "[4, 6]"},
           [&](Bound& b) { b.inputs[1] = View(values.data(), DType::float32, four); });
  s.expect("targets of another shape", Code::shape, {"targets of shape [5]", "[4]"},
           [&](Bound& b) { b.inputs[1] = View(bad.data(), DType::int64, five); });
  s.expect("one loss a row where one number is asked for", Code::shape, {"loss of shape [4]", "[]", "none"},
           [&](Bound& b) { b.outputs[0] = View(values.data(), DType::float32, four); });
  s.expect("one number where each row's is asked for", Code::shape, {"loss of shape []", "a row"},
           [&](Bound& b) { options(b).reduction = Reduction::none; });
  s.expect("a weight of another length", Code::shape, {"weight of shape [5]", "[6]"},
           [&](Bound& b) { options(b).weight = View(values.data(), DType::float32, five); });
  s.expect("a smoothing beyond 1", Code::option, {"label_smoothing 1.5", "0 .. 1"},
           [&](Bound& b) { options(b).label_smoothing = 1.5; });
  s.expect("a negative z-loss", Code::option, {"z_loss -1"}, [&](Bound& b) { options(b).z_loss = -1; });
  s.expect("dloss for no dx", Code::option, {"dloss without dx"}, [&](Bound& b) { options(b).dloss = b.outputs[0]; });
  s.expect("dx of another shape", Code::shape, {"dx of shape [4]"},
           [&](Bound& b) { options(b).dx = View(values.data(), DType::float32, four); });
  s.expect("dx over a part of x", Code::strides, {"dx overlaps x", "in place"},
           [&](Bound& b) { options(b).dx = View(static_cast<float*>(b.inputs[0].data) + 1, DType::float32, full); });
  s.expect("log-probabilities over the loss", Code::strides, {"overlaps"}, [&](Bound& b) {
    b.outputs[0] = View(values.data(), DType::float32, one);
    options(b).log_probability = View(values.data(), DType::float32, four);
  });
  s.expect("a status of float32", Code::dtype, {"status of dtype float32", "int32"},
           [&](Bound& b) { options(b).status = View(values.data(), DType::float32, one); });
  s.expect("a status a row", Code::shape, {"status of shape [4]", "[]"},
           [&](Bound& b) { options(b).status = View(values.data(), DType::int32, four); });
  s.expect("a rung", Code::unsupported, {"rung"}, [&](Bound& b) { b.rows.rung = softfold::Rung::safe; });
  s.expect("no targets", Code::shape, {"1 inputs", "2 inputs"}, [&](Bound& b) { b.inputs.pop_back(); });
  s.expect("a device apart", Code::device, {"targets on another device"},
           [&](Bound& b) { b.inputs[1].device.kind = softfold::DeviceKind::cuda; });
}

TEST(RefuseCrossEntropy, StrayTargetsOfTheBackwardPass) {
  RowCase base;
  base.op = Op::state;
  base.shape = {4, 6};
  base.kind = Kind::gaussian;
  Problem p = make_problem(base);
  p.op = Op::cross_entropy_backward;
  p.own = CrossEntropyOptions{};
  p.inputs.emplace_back(DType::int64, Shape{4});
  for (std::int64_t r = 0; r < 4; ++r) p.inputs.back().set_value(r, static_cast<double>(r));
  p.inputs.emplace_back(DType::float64, Shape{4, 4});
  for (std::int64_t k = 0; k < 16; ++k) p.inputs.back().set_value(k, 1.);
  p.inputs.emplace_back(DType::float32, Shape{});
  p.inputs.back().set_value(0, 1.);
  p.outputs.clear();
  p.outputs.emplace_back(DType::float32, Shape{4, 6});
  Spoilt s(std::move(p));
  const Shape four{4};
  std::vector<std::int64_t> bad{0, 6, 1, 2}, ignored{-1, -100, 1, 2},
      last{0, 1, 2, std::numeric_limits<std::int64_t>::max()};
  std::vector<std::int32_t> negative{0, 1, -1, 2};
  s.expect("a target above the classes", Code::data, {"target 6 for row 1", "0 .. 5", "ignore_index"},
           [&](Bound& b) { b.inputs[1] = View(bad.data(), DType::int64, four); });
  s.expect("a target above all numbers", Code::data, {"target 9223372036854775807 for row 3", "0 .. 5", "ignore_index"},
           [&](Bound& b) { b.inputs[1] = View(last.data(), DType::int64, four); });
  s.expect("a negative target", Code::data, {"target -1 for row 2", "0 .. 5", "ignore_index"},
           [&](Bound& b) { b.inputs[1] = View(negative.data(), DType::int32, four); });
  s.expect("what another ignore_index would let through", Code::data,
           {"target -100 for row 1", "ignore_index -1", "ignore_index"}, [&](Bound& b) {
             b.inputs[1] = View(ignored.data(), DType::int64, four);
             std::get<CrossEntropyOptions>(b.own).ignore_index = -1;
           });
}

}  // namespace
}  // namespace softfold_test
