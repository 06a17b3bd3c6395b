// Cross-entropy of targets that are class probabilities: against the formula, beside class indices, and what
// is refused. (Against finite differences: cross_entropy_random_test.cc.)
#include "backends/loss_reference.hpp"
#include "refuse/refusal.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace softfold_test {
namespace {

/// Of x and q of these dtypes; weights and results of float32, or of float64 as x is.
LossCase soft_case(DType x, DType q, std::int64_t rows, std::int64_t n, Reduction reduction,
                   Layout layout = Layout::contiguous) {
  LossKind kind;
  kind.x = x, kind.targets = q, kind.weight = DType::float32;
  kind.dx = kind.loss = x == DType::float64 ? x : DType::float32;
  kind.layout = layout, kind.reduction = reduction;
  LossCase c(kind, rows, n, static_cast<std::uint64_t>(rows * n), 6);
  c.set_targets(static_cast<std::uint64_t>(n));
  return c;
}

void set_options(LossCase& c, int bits) {
  c.has_weight = (bits & 1) != 0;
  c.options.label_smoothing = (bits & 2) != 0 ? 0.3 : 0;
  c.options.z_loss = (bits & 4) != 0 ? 0.02 : 0;
  c.has_mask = (bits & 8) != 0;
  c.options.rows.scale = (bits & 16) != 0 ? 0.7 : 1;
  c.has_dloss = (bits & 32) != 0;
}

TEST(ClassProbabilities, LossAndGradientAreThoseOfTheFormula) {
  int index = 0;
  for (const std::int64_t n : {3, 50, 1025, 5000})
    for (const auto& [t, of_q] : {std::pair{DType::float64, DType::float64},
                                  {DType::float32, DType::float32},
                                  {DType::bfloat16, DType::float32},
                                  {DType::float32, DType::float16}})
      for (int bits = 0; bits<64; bits += n> 100 ? 13 : 5) {
        const Layout layout = index % 4 == 3 ? Layout::transposed : Layout::contiguous;
        LossCase c = soft_case(t, of_q, 5, n, static_cast<Reduction>(index++ % 3), layout);
        set_options(c, bits);
        c.run();
        const LossReference exact(c);
        const double bound = t == DType::float64 ? 1e-13 : 4e-6;
        const std::string what = std::to_string(n) + " " + std::string(name_of(t)) + " options " + std::to_string(bits);
        EXPECT_LE(error_of(c.loss, exact.loss), bound) << what;
        EXPECT_LE(error_of(c.dx, exact.dx), bound) << what;
        // The backward pass from the saved states has the same bits.
        if (!c.has_dloss)
          for (std::int64_t i = 0; i < c.dloss.count(); ++i) c.dloss.set_value(i, 1.);
        EXPECT_EQ(c.backward().elements(), c.dx.elements()) << what;
      }
}

TEST(ClassProbabilities, LongRowsThatThreadsShare) {
  const auto executor = softfold::make_thread_executor(3);
  softfold::Context threads;
  threads.cpu = executor.get();
  LossCase c = soft_case(DType::float32, DType::float32, 2, 700001, Reduction::mean);
  set_options(c, 1 | 2);
  c.run();
  const auto loss = c.loss.bytes(), dx = c.dx.bytes();
  c.run(threads);
  EXPECT_EQ(c.loss.bytes(), loss);
  EXPECT_EQ(c.dx.bytes(), dx);
}

TEST(ClassProbabilities, AllInOneClassIsThatClassAsTheTarget) {
  LossCase c = soft_case(DType::float32, DType::float32, 6, 2050, Reduction::none);
  Array targets(DType::int32, {6}), loss(DType::float32, {6}), dx(DType::float32, {6, 2050});
  for (std::int64_t k = 0; k < c.targets.count(); ++k) c.targets.set_value(k, 0.);
  for (std::int64_t r = 0; r < 6; ++r) {
    targets.set_value(r, static_cast<double>(r * 400));
    c.targets.set_value(r * 2050 + r * 400, 1.);
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
  LossCase c = soft_case(DType::float32, DType::float32, 3, 40, Reduction::none);
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
  LossCase c = soft_case(DType::float32, DType::float32, 3, 4, Reduction::mean);
  Array wide(DType::float64, {3, 4}), fewer(DType::float32, {3, 3}), row(DType::float32, {3}),
      wide_row(DType::float64, {3});
  const auto refused = [&](Code code, const Words& words, const View& q, const CrossEntropyOptions& o) {
    expect_refused("class probabilities", code, words,
                   [&] { softfold::cross_entropy(c.x.view(), q, c.loss.view(), o); });
  };
  CrossEntropyOptions o;
  refused(Code::dtype, {"targets of dtype float64", "both float64"}, wide.view(), o);
  refused(Code::shape, {"targets of shape [3, 3]", "[3, 4]"}, fewer.view(), o);
  for (const View& indices : {row.view(), wide_row.view()}) {
    refused(Code::shape, {"targets of shape [3] and dtype float", "class indices (int32, int64), one a row"}, indices,
            o);
    refused(Code::shape, {"targets of shape [3] and dtype float", "class probabilities of x's shape [3, 4]"}, indices,
            o);
  }
  o.log_probability = row.view();
  refused(Code::option, {"log_probability", "int32"}, c.targets.view(), o);
}

}  // namespace
}  // namespace softfold_test
