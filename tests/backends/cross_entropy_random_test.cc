// cross_entropy with its options drawn at random, all together, against long double; and its gradient against central
// differences.
#include "backends/loss_reference.hpp"
#include "support/thread_counts.hpp"

#include <gtest/gtest.h>

namespace softfold_test {
namespace {

constexpr DType kFloating[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};
constexpr Reduction kReductions[] = {Reduction::none, Reduction::sum, Reduction::mean};

LossKind random_kind(Random& random) {
  const auto floating = [&] { return kFloating[random.below(4)]; };
  LossKind k;
  k.x = floating(), k.dx = floating(), k.loss = floating(), k.weight = floating(), k.dloss = floating();
  k.targets = random.below(2) == 0 ? DType::int64 : DType::int32;
  if (random.below(3) == 0) k.targets = k.x == DType::float64 ? k.x : kFloating[2 * random.below(2)];
  k.layout = kLayouts[random.below(std::ssize(kLayouts))];
  k.reduction = kReductions[random.below(3)];
  return k;
}

/// Off by the fold's error, and by the rounding to the result's own dtype. float16 has a least number too.
void expect_near(const Array& got, const std::vector<double>& wanted, double size, DType x, const std::string& what) {
  const double fold = x == DType::float64 ? 2e-15 : 1e-6;
  const DType t = got.dtype();
  const double unit = t == DType::float16    ? 0x1p-11
                      : t == DType::bfloat16 ? 0x1p-8
                      : t == DType::float32  ? 0x1p-24
                                             : 0x1p-53;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double bound = fold * size + unit * std::abs(wanted[i]) + (t == DType::float16 ? 0x1p-25 : 0);
    EXPECT_NEAR(number(got, static_cast<std::int64_t>(i)), wanted[i], bound) << what << ", " << i;
  }
}

TEST(CrossEntropy, OfRandomOptionsIsTheFormulas) {
  const auto executor = softfold::make_thread_executor(3);
  softfold::Context threads;
  threads.cpu = executor.get();
  for (std::uint64_t seed = 0; seed < 500; seed += kStep) {
    Random random(seed * 31 + 7);
    const LossKind kind = random_kind(random);
    LossCase c(kind, 1 + random.below(7), 1 + random.below(seed % 8 == 0 ? 3000 : 70), seed);
    c.has_weight = random.below(2) != 0, c.has_mask = random.below(2) != 0, c.has_length = random.below(2) != 0;
    c.has_scales = random.below(2) != 0, c.has_dloss = random.below(2) != 0;
    if (random.below(2) != 0) c.options.label_smoothing = random.uniform();
    if (random.below(2) != 0) c.options.z_loss = random.uniform(0, 0.1);
    if (random.below(2) != 0) c.options.rows.scale = random.uniform(-1.5, 1.5);
    if (random.below(2) != 0) c.options.ignore_index = random.below(2) != 0 ? -1 : c.n + 5;
    c.options.rows.causal = c.n >= c.rows && random.below(3) == 0;  // no row is empty
    c.set_targets(seed, 1 + random.below(4));
    c.run();
    const std::string what = "seed " + std::to_string(seed) + ", " + std::to_string(c.rows) + " x " +
                             std::to_string(c.n) + " " + std::string(name_of(kind.x));
    const LossReference exact(c);
    expect_near(c.loss, exact.loss, exact.loss_size, kind.x, "loss, " + what);
    expect_near(c.dx, exact.dx, exact.dx_size, kind.x, "dx, " + what);
    if (c.of_classes())
      expect_near(c.log_probability, exact.log_probability, exact.log_probability_size, kind.x, "lp, " + what);
    // The same bits by threads, and from the states.
    const auto loss = c.loss.bytes(), dx = c.dx.bytes(), lp = c.log_probability.bytes();
    c.run(threads);
    EXPECT_TRUE(c.loss.bytes() == loss && c.dx.bytes() == dx && c.log_probability.bytes() == lp) << what;
    EXPECT_TRUE(c.dx.only_elements_written() && c.loss.only_elements_written()) << what;
    if (!c.has_dloss)
      for (std::int64_t i = 0; i < c.dloss.count(); ++i) c.dloss.set_value(i, 1.);
    EXPECT_EQ(c.backward().elements(), c.dx.elements()) << what;
  }
}

/// Ragged rows side by side: of each what it has alone, which the test above compares.
TEST(CrossEntropy, OfRaggedRowsIsThatOfEachAlone) {
  for (std::uint64_t seed = 0; seed < 60; seed += kStep) {
    Random random(seed + 100);
    LossKind kind = random_kind(random);
    kind.targets = DType::int64, kind.layout = Layout::contiguous, kind.reduction = Reduction::none;
    const std::int64_t rows = 1 + random.below(6);
    std::vector<LossCase> alone;
    Array offsets(seed % 2 == 0 ? DType::int32 : DType::int64, {rows + 1});
    std::int64_t total = 0;
    offsets.set_value(0, 0);
    for (std::int64_t r = 0; r < rows; total += alone.back().n, ++r) {
      alone.emplace_back(kind, 1, 1 + random.below(seed % 8 == 0 ? 3000 : 70),
                         seed * 8 + static_cast<std::uint64_t>(r));
      offsets.set_value(r + 1, static_cast<double>(total + alone.back().n));
    }
    Array x(kind.x, {total}), dx(kind.dx, {total}), loss(kind.loss, {rows}),
        lp = loss, dloss(kind.dloss, {rows}), targets(DType::int64, {rows}), states(DType::float64, {rows, 4}),
        expected = dx;
    CrossEntropyOptions o;
    o.reduction = Reduction::none, o.label_smoothing = 0.3, o.z_loss = 0.02, o.rows.scale = random.uniform(-1.5, 1.5);
    for (std::int64_t r = 0, at = 0; r < rows; at += alone[static_cast<std::size_t>(r++)].n) {
      LossCase& c = alone[static_cast<std::size_t>(r)];
      c.options = o, c.has_dloss = true;
      c.set_targets(seed, r % 3 == 2 ? 1 : 0);
      dloss.set_value(r, 0.5 * static_cast<double>(r) - 1), c.dloss.set_value(0, number(dloss, r));
      c.run();
      targets.set_value(r, number(c.targets, 0));
      for (std::int64_t i = 0; i < c.n; ++i)
        x.set_value(at + i, number(c.x, i)), expected.set_value(at + i, number(c.dx, i));
    }
    o.rows.offsets = offsets.view(), o.dx = dx.view(), o.dloss = dloss.view();
    o.log_probability = lp.view(), o.states = states.view();
    softfold::cross_entropy(x.view(), targets.view(), loss.view(), o);
    EXPECT_EQ(numbers(dx), numbers(expected)) << seed;
    for (std::int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(number(loss, r), number(alone[static_cast<std::size_t>(r)].loss, 0)) << seed << ", row " << r;
      EXPECT_EQ(number(lp, r), number(alone[static_cast<std::size_t>(r)].log_probability, 0)) << seed << ", row " << r;
    }
  }
}

/// Central differences of the losses as they are weighed, in every element.
void check_derivative(LossCase& c, const std::string& what) {
  c.run();
  constexpr double h = 1e-5;
  for (std::int64_t k = 0; k < c.x.count(); ++k) {
    const double before = number(c.x, k);
    c.x.set_value(k, before + h);
    const double above = c.total();
    c.x.set_value(k, before - h);
    const double below = c.total();
    c.x.set_value(k, before);
    EXPECT_NEAR(number(c.dx, k), (above - below) / (2 * h), 4e-9) << what << ", " << k;
  }
}

void check_derivatives(DType targets) {
  for (const Reduction reduction : kReductions)
    for (int bits = 0; bits < 128; bits += 9) {  // every option on in some, off in some, beside every other
      LossKind kind;
      kind.targets = targets;
      kind.reduction = reduction;
      LossCase c(kind, 4, 19, 5, 3);
      c.has_weight = (bits & 1) != 0, c.has_dloss = (bits & 2) != 0, c.has_mask = (bits & 4) != 0;
      c.has_length = (bits & 8) != 0, c.has_scales = (bits & 16) != 0;
      c.options.label_smoothing = (bits & 32) != 0 ? 0.3 : 0;
      c.options.z_loss = (bits & 64) != 0 ? 0.02 : 0;
      c.options.rows.scale = 1.7;
      c.set_targets(2, 3);
      check_derivative(
          c, "reduction " + std::to_string(static_cast<int>(reduction)) + ", options " + std::to_string(bits));
    }
}

TEST(CrossEntropy, TheGradientIsTheDerivativeOfEveryReduction) { check_derivatives(DType::int64); }

TEST(ClassProbabilities, TheGradientIsTheLosssDerivative) { check_derivatives(DType::float64); }

}  // namespace
}  // namespace softfold_test
