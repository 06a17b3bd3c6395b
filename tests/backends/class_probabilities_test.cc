// Cross-entropy of targets that are class probabilities: against the formula in double, beside class indices, and what
// is refused. (Against finite differences: cross_entropy_random_test.cc.)
#include "refuse/refusal.hpp"
#include "support/linear_reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace softfold_test {
namespace {

using softfold::CrossEntropyOptions;

struct SoftCase {
  std::int64_t rows, n;
  Array x, q, weight, mask, loss, states, dx, dloss;
  CrossEntropyOptions options;
  bool has_weight = false, has_mask = false, has_dloss = false;

  SoftCase(DType t, DType of_q, std::int64_t rows_, std::int64_t n_, Reduction reduction,
           Layout layout = Layout::contiguous)
      : rows(rows_),
        n(n_),
        x(t, {rows, n}, layout),
        q(of_q, {rows, n}, layout),
        weight(DType::float32, {n}),
        mask(DType::boolean, {n}),
        loss(t == DType::float64 ? t : DType::float32, reduction == Reduction::none ? Shape{rows} : Shape{}),
        states(DType::float64, {rows, 4}),
        dx(t == DType::float64 ? t : DType::float32, {rows, n}),
        dloss(DType::float64, loss.shape()) {
    options.reduction = reduction;
    Random random(static_cast<std::uint64_t>(rows * n));
    for (std::int64_t k = 0; k < rows * n; ++k) {
      x.set_value(k, random.uniform(-6., 6.));
      q.set_value(k, k % 3 == 0 ? 0. : random.uniform(0., 2. / static_cast<double>(n)));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      weight.set_value(i, 0.5 + 0.25 * static_cast<double>(i % 5));
      mask.set_value(i, i % 4 != 1 ? 1. : 0.);
    }
    for (std::int64_t i = 0; i < dloss.count(); ++i) dloss.set_value(i, 1. - 0.5 * static_cast<double>(i % 3));
  }
  void set_options(int bits) {
    has_weight = (bits & 1) != 0;
    options.label_smoothing = (bits & 2) != 0 ? 0.3 : 0;
    options.z_loss = (bits & 4) != 0 ? 0.02 : 0;
    has_mask = (bits & 8) != 0;
    options.rows.scale = (bits & 16) != 0 ? 0.7 : 1;
    has_dloss = (bits & 32) != 0;
  }
  CrossEntropyOptions bound() {
    CrossEntropyOptions o = options;
    if (has_weight) o.weight = weight.view();
    if (has_mask) o.rows.mask = mask.view();
    return o;
  }
  void run() {
    CrossEntropyOptions o = bound();
    o.states = states.view();
    o.dx = dx.view();
    if (has_dloss) o.dloss = dloss.view();
    softfold::cross_entropy(x.view(), q.view(), loss.view(), o);
  }

  /// (losses or one, dx) by the formula.
  std::pair<std::vector<double>, std::vector<double>> expected() const {
    std::vector<double> losses, gradient;
    for (std::int64_t r = 0; r < rows; ++r) {
      double most = -HUGE_VAL, sum = 0, classes = 0, total = 0, pull = 0;
      const auto there = [&](std::int64_t i) { return !has_mask || number(mask, i) != 0.; };
      const auto s = [&](std::int64_t i) { return options.rows.scale * number(x, r * n + i); };
      for (std::int64_t i = 0; i < n; ++i)
        if (there(i)) most = std::max(most, s(i)), classes += 1;
      for (std::int64_t i = 0; i < n; ++i) sum += there(i) ? std::exp(s(i) - most) : 0.;
      const double lse = most + std::log(sum), e = options.label_smoothing;
      const auto wq = [&](std::int64_t i) {
        return (has_weight ? number(weight, i) : 1.) * ((1 - e) * number(q, r * n + i) + e / classes);
      };
      for (std::int64_t i = 0; i < n; ++i)
        if (there(i)) total += wq(i) * (lse - s(i)), pull += wq(i);
      losses.push_back(total + options.z_loss * pull * lse * lse);
      pull *= 1 + 2 * options.z_loss * lse;
      double factor = options.rows.scale / (options.reduction == Reduction::mean ? static_cast<double>(rows) : 1.);
      if (has_dloss) factor *= number(dloss, options.reduction == Reduction::none ? r : 0);
      for (std::int64_t i = 0; i < n; ++i)
        gradient.push_back(there(i) ? factor * (pull * std::exp(s(i) - lse) - wq(i)) : 0.);
    }
    if (options.reduction != Reduction::none) {
      double all = 0;
      for (const double l : losses) all += l;
      losses.assign(1, options.reduction == Reduction::mean ? all / static_cast<double>(rows) : all);
    }
    return {losses, gradient};
  }
};

TEST(ClassProbabilities, LossAndGradientAreThoseOfTheFormula) {
  int index = 0;
  for (const std::int64_t n : {3, 50, 1025, 5000})
    for (const auto& [t, of_q] : {std::pair{DType::float64, DType::float64},
                                  {DType::float32, DType::float32},
                                  {DType::bfloat16, DType::float32},
                                  {DType::float32, DType::float16}})
      for (int bits = 0; bits<64; bits += n> 100 ? 13 : 5) {
        const Layout layout = index % 4 == 3 ? Layout::transposed : Layout::contiguous;
        SoftCase c(t, of_q, 5, n, static_cast<Reduction>(index++ % 3), layout);
        c.set_options(bits);
        c.run();
        const auto [loss, dx] = c.expected();
        const double bound = t == DType::float64 ? 1e-13 : 4e-6;
        const std::string what = std::to_string(n) + " " + std::string(name_of(t)) + " options " + std::to_string(bits);
        EXPECT_LE(error_of(c.loss, loss), bound) << what;
        EXPECT_LE(error_of(c.dx, dx), bound) << what;
        // The backward pass from the saved states has the same bits.
        if (!c.has_dloss)
          for (std::int64_t i = 0; i < c.dloss.count(); ++i) c.dloss.set_value(i, 1.);
        Array again(c.dx.dtype(), {5, n});
        softfold::cross_entropy_backward(c.x.view(), c.q.view(), c.states.view(), c.dloss.view(), again.view(),
                                         c.bound());
        EXPECT_EQ(again.bytes(), c.dx.bytes()) << what;
      }
}

TEST(ClassProbabilities, LongRowsThatThreadsShare) {
  const auto executor = softfold::make_thread_executor(3);
  softfold::Context context;
  context.cpu = executor.get();
  SoftCase c(DType::float32, DType::float32, 2, 700001, Reduction::mean);
  c.set_options(1 | 2);
  c.run();
  const auto alone = c.loss.bytes(), alone_dx = c.dx.bytes();
  CrossEntropyOptions o = c.bound();
  o.dx = c.dx.view();
  softfold::cross_entropy(c.x.view(), c.q.view(), c.loss.view(), o, context);
  EXPECT_EQ(c.loss.bytes(), alone);
  EXPECT_EQ(c.dx.bytes(), alone_dx);
}

TEST(ClassProbabilities, AllInOneClassIsThatClassAsTheTarget) {
  SoftCase c(DType::float32, DType::float32, 6, 2050, Reduction::none);
  Array targets(DType::int32, {6}), loss(DType::float32, {6}), dx(DType::float32, {6, 2050});
  for (std::int64_t k = 0; k < c.q.count(); ++k) c.q.set_value(k, 0.);
  for (std::int64_t r = 0; r < 6; ++r) {
    targets.set_value(r, static_cast<double>(r * 400));
    c.q.set_value(r * 2050 + r * 400, 1.);
    c.x.set_value(r * 2050 + 7, -std::numeric_limits<double>::infinity());  // of probability 0 both ways
  }
  c.run();
  CrossEntropyOptions o;
  o.reduction = Reduction::none;
  o.dx = dx.view();
  softfold::cross_entropy(c.x.view(), targets.view(), loss.view(), o);
  EXPECT_EQ(c.loss.bytes(), loss.bytes());
  EXPECT_EQ(c.dx.bytes(), dx.bytes());
}

TEST(ClassProbabilities, EmptyAndNaNRows) {
  SoftCase c(DType::float32, DType::float32, 3, 40, Reduction::none);
  for (std::int64_t i = 0; i < 40; ++i) c.x.set_value(i, -std::numeric_limits<double>::infinity());
  c.x.set_value(45, std::numeric_limits<double>::quiet_NaN());
  c.run();
  EXPECT_EQ(number(c.loss, 0), HUGE_VAL);
  EXPECT_TRUE(std::isnan(number(c.loss, 1)));
  EXPECT_TRUE(std::isfinite(number(c.loss, 2)));
  EXPECT_EQ(number(c.dx, 3), 0.);
  EXPECT_TRUE(std::isnan(number(c.dx, 60)));
}

TEST(ClassProbabilities, WhatIsRefused) {
  SoftCase c(DType::float32, DType::float32, 3, 4, Reduction::mean);
  Array wide(DType::float64, {3, 4}), fewer(DType::float32, {3, 3}), row(DType::float32, {3});
  const auto refused = [&](Code code, const Words& words, const View& q, const CrossEntropyOptions& o) {
    expect_refused("class probabilities", code, words,
                   [&] { softfold::cross_entropy(c.x.view(), q, c.loss.view(), o); });
  };
  CrossEntropyOptions o;
  refused(Code::dtype, {"targets of dtype float64", "both float64"}, wide.view(), o);
  refused(Code::shape, {"targets of shape [3, 3]", "[3, 4]"}, fewer.view(), o);
  refused(Code::shape, {"targets of shape [3]", "[3, 4]"}, row.view(), o);
  o.log_probability = row.view();
  refused(Code::option, {"log_probability", "int32"}, c.q.view(), o);
}

}  // namespace
}  // namespace softfold_test
