// cpu == cuda, bit for bit: cross-entropy with its gradient, of rows of any layout and content, finished side by side.
#include "cuda/both.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace softfold_test {
namespace {

using softfold::DType;
using softfold::Reduction;

class CudaLoss : public Cuda {};

/// Rows of all kinds: common ones, of absent elements here and there or but for one, far from 0 and from the others, of
/// one size, with NaN or an infinity, of nothing but absent elements.
double logit(std::int64_t row, std::int64_t i, std::int64_t n) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double common = 6. * std::sin(static_cast<double>(row * 131 + i * 7));
  const bool one = i == row * 31 % n;
  switch (row % 13) {
    case 3: return i % 3 == 1 ? -kInfinity : common;
    case 4: return one ? -70. : -kInfinity;
    case 5: return common - 300.;
    case 6: return common * 40.;
    case 7: return 2.;
    case 8: return one ? std::numeric_limits<double>::quiet_NaN() : common;
    case 9: return one ? kInfinity : common;
    case 10: return -kInfinity;
    default: return common;
  }
}

/// x, its targets and what its rows count, the loss and its gradient, with all that a call may ask for.
struct Loss {
  Tensor x, dx, targets, dloss, weight, loss, lp, states;
  Reduction reduction;
  double scale;

  /// gap: elements between a row and the next one. common: all rows are common ones, whose losses' sum is a number.
  Loss(DType t, std::int64_t rows, std::int64_t n, std::int64_t gap, Reduction reduction_, double scale_,
       bool common = false)
      : x(t, {rows, n}, {n + gap, 1}, gap),
        dx(t, {rows, n}, {n + gap, 1}, gap),
        targets(DType::int32, {rows}),
        dloss(DType::float32, reduction_ == Reduction::none ? std::vector{rows} : std::vector<std::int64_t>{}),
        weight(DType::float32, {n}),
        loss(DType::float32, dloss.shape()),
        lp(DType::float32, {rows}),
        states(DType::float64, {rows, 4}),
        reduction(reduction_),
        scale(scale_) {
    constexpr double kFactors[] = {1., 0x1p-9, 3., 0x1p35, -0x1.8p60, 0x1p120, 0., 1e-30};
    x.fill([&](std::int64_t i) { return logit(common ? i / n * 13 : i / n, i % n, n); });
    targets.fill([&](std::int64_t r) { return r % 11 == 2 ? -100. : static_cast<double>(r * 31 % n); });
    dloss.fill([&](std::int64_t r) { return kFactors[(rows + r) % 8]; });
    weight.fill([](std::int64_t i) { return 0.5 * static_cast<double>(i % 4); });
  }
  /// The kernel's name.
  std::string run(bool gpu, bool weighted, bool in_place, bool gradient = true) {
    softfold::CrossEntropyOptions o;
    o.reduction = reduction;
    o.rows.scale = scale;
    if (gradient) o.dloss = dloss.view(gpu), o.dx = (in_place ? x : dx).view(gpu);
    o.log_probability = lp.view(gpu), o.states = states.view(gpu);
    if (weighted) o.weight = weight.view(gpu);
    const softfold::View inputs[] = {x.view(gpu), targets.view(gpu)}, outputs[] = {loss.view(gpu)};
    softfold::Plan plan = softfold::plan(softfold::Op::cross_entropy, inputs, outputs, o);
    plan.run();
    return std::string(plan.kernel());
  }
  void expect_same(const std::string& what) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (Tensor* t : {&dx, &loss, &lp, &states, &x})
      ASSERT_EQ(difference(t->host(), t->download(), t->size()), "") << what;
  }
};

void expect_same(DType t, std::int64_t rows, std::int64_t n, int kind) {
  const std::string what =
      std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) + " kind " + std::to_string(kind);
  Loss of(t, rows, n, kind % 2 == 0 ? 0 : 3, static_cast<Reduction>(kind % 3), kind % 5 == 4 ? -0.75 : 1.);
  for (const bool in_place : {false, true}) {
    for (const bool gpu : {false, true}) of.run(gpu, kind / 2 % 2 == 0, in_place);
    of.expect_same(what + (in_place ? " in place" : ""));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(CudaLoss, GradientsOfShortRows) {
  for (const std::int64_t n :
       {1, 2, 7, 9, 17, 25, 40, 64, 100, 128, 129, 250, 256, 281, 300, 511, 512, 700, 1000, 1023, 1024, 1025})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (int kind = 0; kind < 12; ++kind) {
        expect_same(t, 170 + kind, n, kind);
        if (HasFatalFailure()) return;
      }
}

/// One row a block, and two.
TEST_F(CudaLoss, GradientsOfRowsThatABlockHolds) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{2050, 2048},
                                {1400, 3000},
                                {700, 6500},
                                {700, 6144},
                                {400, 10241},
                                {1060, 12288},
                                {270, 16384}})
    for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
      for (const int kind : {0, 1, 2, 4}) {
        expect_same(t, rows, n, kind);
        if (HasFatalFailure()) return;
      }
}

/// More rows than clusters that stay begin with: the rest they take from a counter.
TEST_F(CudaLoss, GradientsOfRowsThatClustersTakeOneByOne) {
  struct Case {
    DType t;
    std::int64_t rows, n;
  };
  for (const auto& [t, rows, n] :
       {Case{DType::bfloat16, 1000, 32000}, {DType::float16, 1500, 17001}, {DType::float32, 300, 100000}})
    for (const int kind : {0, 1, 2}) {
      expect_same(t, rows, n, kind);
      if (HasFatalFailure()) return;
    }
}

/// Without a gradient, of rows whose states a warp merges in one run of 64 or in two.
TEST_F(CudaLoss, LossesOfLongRows) {
  for (const auto& [t, rows, n] : {std::tuple<DType, std::int64_t, std::int64_t>{DType::float32, 100, 65536},
                                   {DType::float32, 90, 100000},
                                   {DType::bfloat16, 60, 262144},
                                   {DType::float16, 60, 200001}})
    for (int kind = 0; kind < 4; ++kind) {
      const Reduction reduction = kind < 3 ? static_cast<Reduction>(kind) : Reduction::sum;
      Loss of(t, rows, n, kind % 2 == 0 ? 0 : 3, reduction, 1., reduction != Reduction::none);
      for (const bool gpu : {false, true}) of.run(gpu, kind % 2 == 0, false, false);
      of.expect_same(std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) + " kind " +
                     std::to_string(kind));
      if (HasFatalFailure()) return;
      if (reduction == Reduction::none) continue;
      ASSERT_TRUE(std::isfinite(*reinterpret_cast<const float*>(of.loss.host().data())));
    }
}

/// Several chunks of rows, whose sums one block adds up, or several; behind clusters that stay, too.
TEST_F(CudaLoss, GradientsOfManyRows) {
  for (const std::int64_t rows : {3000, 6500, 8200, 16390}) {
    expect_same(DType::bfloat16, rows, 16390, 1);
    if (HasFatalFailure()) return;
  }
  for (const std::int64_t rows : {1023, 1025, 8192, 8193, 12000, 16384, 16385, 70001})
    for (int kind = 0; kind < 3; ++kind) {
      expect_same(DType::bfloat16, rows, 10, kind);
      if (HasFatalFailure()) return;
    }
}

/// Without gradients: by a cluster, by a grid, by either and no sum.
TEST_F(CudaLoss, LossesOfShortRows) {
  const char* step = std::getenv("SOFTFOLD_TEST_STEP");  // under a sanitizer
  int taken = 0, index = 0;
  for (const std::int64_t n :
       {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 255, 256, 300, 512, 513, 1000, 1023, 1024})
    for (const std::int64_t rows : {1, 3, 33, 130, 700, 4096, 4099, 17001}) {
      if (rows * n > 500000) continue;
      for (const DType t : {DType::float32, DType::bfloat16, DType::float16})
        for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
          if (step != nullptr && index++ % std::atoi(step) != 0) continue;
          const std::int64_t at = n + rows + static_cast<std::int64_t>(reduction);
          Loss of(t, rows, n, at % 3, reduction, at % 7 == 0 ? -0.5 : at % 11 == 0 ? 0. : 1., at % 2 == 0);
          of.run(false, at % 3 == 0, false, false);
          taken += of.run(true, at % 3 == 0, false, false) == "cross_entropy_small" ? 1 : 0;
          of.expect_same(std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) +
                         " reduction " + std::to_string(static_cast<int>(reduction)));
          if (HasFatalFailure()) return;
        }
    }
  if (step == nullptr) {
    EXPECT_EQ(taken > 800, !leaves_out_small_kernels()) << taken;
  }
}

/// Sums and means that are numbers, by every kernel that a gradient has and without one, of rows so few that a cluster
/// prepares them all, of more, and of more chunks of rows than one block adds up.
TEST_F(CudaLoss, SumsOfCommonRows) {
  for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{5000, 10},
                                {2049, 100},
                                {3000, 1000},
                                {1100, 1024},
                                {2050, 2048},
                                {1400, 3000},
                                {700, 6500},
                                {1100, 8000},
                                {2000, 8000},
                                {1500, 9001},
                                {1100, 12001},
                                {1060, 12288},
                                {1030, 16384},
                                {1030, 17001},
                                {17000, 300},
                                {1050000, 10}})
    for (const DType t : {DType::float32, DType::bfloat16})
      for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        Loss of(t, rows, n, 0, reduction, 1., true);
        for (const auto& [weighted, gradient] : {std::pair{false, true}, {true, true}, {false, false}, {true, false}}) {
          for (const bool gpu : {false, true}) of.run(gpu, weighted, false, gradient);
          of.expect_same(std::to_string(rows) + "x" + std::to_string(n) + " " + std::string(name_of(t)) +
                         (gradient ? " with its gradient" : ""));
          if (HasFatalFailure()) return;
          const auto loss = *reinterpret_cast<const float*>(of.loss.host().data());
          ASSERT_TRUE(std::isfinite(loss));
        }
      }
}

}  // namespace
}  // namespace softfold_test
