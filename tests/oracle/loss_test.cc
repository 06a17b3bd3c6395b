// cross_entropy against MPFR and long double: the loss, the log-probability of the target and the gradient, of classes
// and of class probabilities, with every term of the loss; each within the bound that docs/accuracy.md states for it.
#include "oracle/suite.hpp"
#include "support/loss_row.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace softfold_test::oracle {
namespace {

namespace fold = softfold::fold;
using softfold::CrossEntropyOptions;
using softfold::DType;
using softfold::Reduction;
using softfold::View;
using Wide = std::vector<long double>;

struct Terms {
  const char* name;
  double smoothing, z_loss;
  bool weighted, probabilities;
};
constexpr Terms kTerms[] = {
    {"a class", 0, 0, false, false},      {"smoothed", 0.125, 0, false, false},
    {"z-loss", 0, 1e-3, false, false},    {"weighted, smoothed, z-loss", 0.3, 0.02, true, false},
    {"probabilities", 0, 0, false, true}, {"probabilities, weighted, smoothed, z-loss", 0.3, 0.02, true, true}};

struct WorstLoss {
  Worst loss, log_probability, dx;
};

/// One row with a target and its terms: the operands, the exact results and their bounds.
template <class S>
class LossProblem {
 public:
  using T = fold::FoldType<S>;
  static constexpr long double u = Contract<S>::u, lost = RowCheck<S>::lost;

  LossProblem(std::vector<S> x_, double scale, const Terms& terms_, std::int64_t target_)
      : x(std::move(x_)), terms(terms_), target(target_), weight(x.size(), 1), scale_(scale) {
    exact = exact_row(x, scale);
    Random random(x.size() + 17);
    for (std::size_t k = 0; k < x.size(); ++k) {
      if (terms.weighted) weight[k] = static_cast<T>(0.25 * static_cast<double>(1 + k % 7));
      const double chance = random.below(3) == 0 ? 0. : random.uniform(0., 2. / static_cast<double>(x.size()));
      if (terms.probabilities) q.push_back(static_cast<T>(chance));
    }
    if (exact.row == Exact::Row::regular) set_exact();
  }

  /// Whether a logarithm, a sum of them or the lse leaves the range of the fold, where the loss is infinite at the
  /// latest.
  bool leaves_range() const {
    const long double largest = std::numeric_limits<T>::max() * (1 - 16 * u);
    const long double sum = sum_of(x.size(), [&](std::size_t k) {
      const long double lp = row.log_probability[k];
      const bool added = terms.smoothing > 0 || terms.probabilities || static_cast<std::int64_t>(k) == target;
      return added && std::isfinite(lp) ? std::max(1.L, static_cast<long double>(weight[k])) * std::abs(lp) : 0;
    });
    return sum >= largest || std::abs(exact.lse) >= largest;
  }

  /// Of what is added up a logarithm has a product's error and the tree's, and a share of computed probabilities its
  /// own.
  long double loss_bound() const {
    const RowBounds<T> bounds{exact};
    const long double added = terms.probabilities ? 4 + levels() : terms.smoothing > 0 ? 1 + levels() : 0;
    const long double of_logs = sum_of(x.size(), [&](std::size_t k) -> long double {
      if (row.share[k] == 0) return 0;
      return row.share[k] * (bounds.log_softmax(k) + added * std::abs(row.log_probability[k]) * u);
    });
    const long double of_lse = bounds.logsumexp();
    const long double in_all = 8 + (terms.probabilities ? levels() : 0);
    return of_logs + row.square * (2 * std::abs(row.lse) + of_lse) * of_lse + in_all * row.loss() * u + lost;
  }

  /// Of element k of the gradient, whose derivative is slope, times `factor`; `mean`: u more that the factor is off.
  long double dx_bound(std::size_t k, long double slope, long double factor, long double mean = 0) const {
    const RowBounds<T> bounds{exact};
    const long double p = exact.probability[k];
    const long double pull = shares_ + 2 * row.square * std::abs(row.lse);
    const long double of_p = bounds.may_flush(k) ? 1 : bounds.softmax(k) + (9 + levels()) * u;
    const long double of_difference = 4 * row.share[k] * u + (3 + mean) * std::abs(slope) * u;
    return std::abs(factor) * (p * (pull * of_p + 2 * row.square * bounds.logsumexp()) + of_difference + 2 * lost) +
           2 * lost;
  }
  bool counts(std::size_t k) const { return !RowBounds<T>{exact}.may_flush(k); }

  /// Options that hold the weights.
  CrossEntropyOptions options(Reduction reduction) const {
    CrossEntropyOptions o;
    o.reduction = reduction, o.label_smoothing = terms.smoothing, o.z_loss = terms.z_loss;
    o.rows.scale = scale_;
    if (terms.weighted) o.weight = View(weight.data(), dtype_of<T>(), shape_);
    return o;
  }

  /// The row alone, all of its results stored as S.
  void check(WorstLoss& worst, const std::string& at) {
    constexpr DType type = dtype_of<S>();
    const std::int64_t none[] = {1}, matrix[] = {1, std::ssize(x)};
    const std::span<const std::int64_t> full(matrix), one(none);
    std::vector<S> loss(1), lp(1), dx(x.size());
    const double dloss = 1.75;
    CrossEntropyOptions o = options(Reduction::none);
    o.dx = View(dx.data(), type, full);
    o.dloss = View(&dloss, DType::float64, one);
    if (!terms.probabilities) o.log_probability = View(lp.data(), type, one);
    const View targets = terms.probabilities ? View(q.data(), dtype_of<T>(), full) : View(&target, DType::int64, one);
    softfold::cross_entropy(View(x.data(), type, full), targets, View(loss.data(), type, one), o);

    RowCheck<S> judge(at);
    const auto t = static_cast<std::size_t>(target);
    const long double of_target = row.log_probability[t], value = row.loss();
    const bool ranged = !leaves_range();
    if (!terms.probabilities && std::isinf(of_target)) {
      EXPECT_EQ(fold::widen(lp[0]), -INFINITY) << at;
    } else if (!terms.probabilities) {
      judge(worst.log_probability, "log-probability", t, lp[0], of_target, RowBounds<T>{exact}.log_softmax(t));
    }
    if (std::isinf(value)) {
      EXPECT_EQ(fold::widen(loss[0]), INFINITY) << at;
    } else if (ranged || fold::widen(loss[0]) != INFINITY) {
      judge(worst.loss, "loss", 0, loss[0], value, loss_bound());
    }
    if (!ranged && terms.z_loss > 0) return;  // the lse in the gradient is the largest number instead
    const long double factor = static_cast<long double>(scale_) * static_cast<long double>(dloss);
    const Wide slopes = row.slopes();
    for (std::size_t k = 0; k < dx.size(); ++k)
      judge(worst.dx, "gradient", k, dx[k], factor * slopes[k], dx_bound(k, slopes[k], factor), counts(k));
  }

  std::vector<S> x;
  Terms terms;
  std::int64_t target;
  std::vector<T> weight, q;
  Exact exact;
  LossRow row;

 private:
  void set_exact() {
    row.log_probability = exact.log_probability;
    row.lse = exact.lse;
    const auto classes = static_cast<long double>(x.size());
    for (std::size_t k = 0; k < x.size(); ++k) {
      const long double hit = static_cast<std::int64_t>(k) == target ? 1 : 0;
      const long double chance = terms.probabilities ? static_cast<long double>(q[k]) : hit;
      row.share.push_back(LossRow::share_of(weight[k], chance, terms.smoothing, classes));
    }
    shares_ = row.shares();
    row.square = terms.z_loss * (terms.probabilities ? shares_ : weight[static_cast<std::size_t>(target)]);
  }
  long double levels() const { return std::ceil(std::log2(static_cast<long double>(x.size()))); }

  double scale_;
  long double shares_ = 0;
  std::vector<std::int64_t> shape_{std::ssize(x)};
};

template <class S>
class LossOracle : public testing::Test {};
TYPED_TEST_SUITE(LossOracle, Storages);

TYPED_TEST(LossOracle, EveryKindOfRowWithinTheStatedBounds) {
  using S = TypeParam;
  WorstLoss of_classes, of_probabilities;
  for_rows<S>(all_kinds(), {1, 2, 33, 1023, 1024, 1025, 2049, 5000}, {1., -0.3, 3.7},
              [&](Kind kind, std::int64_t n, double scale, const std::string& at) {
                for (const Terms& terms : kTerms) {
                  LossProblem<S> problem(make_row<S>(kind, n), scale, terms, (n * 5) / 7);
                  if (problem.exact.row == Exact::Row::regular)
                    problem.check(terms.probabilities ? of_probabilities : of_classes, at + ", " + terms.name);
                }
              });
  print_worst<S>("loss of a class", of_classes.loss);
  print_worst<S>("log-probability of a class", of_classes.log_probability);
  print_worst<S>("gradient of a class", of_classes.dx);
  print_worst<S>("loss of probabilities", of_probabilities.loss);
  print_worst<S>("gradient of probabilities", of_probabilities.dx);
}

/// Rows of every kind together: what a sum or a mean of them is, and its gradient.
template <class S>
void check_reduction(WorstLoss& worst, const Terms& terms, Reduction reduction) {
  using T = fold::FoldType<S>;
  constexpr std::int64_t n = 33, rows = 1100;
  std::vector<LossProblem<S>> problems;
  std::vector<S> x;
  std::vector<T> q;
  std::vector<std::int64_t> targets;
  long double total = 0, bound = 0, counted = 0;
  for (std::int64_t seed = 1; std::ssize(problems) < rows; ++seed) {
    const Kind kind = all_kinds()[static_cast<std::size_t>(seed) % all_kinds().size()];
    LossProblem<S> row(make_row<S>(kind, n, static_cast<std::uint64_t>(seed)), 0.75, terms, seed % n);
    if (row.exact.row != Exact::Row::regular || kind == Kind::huge || std::isinf(row.row.loss())) continue;
    x.insert(x.end(), row.x.begin(), row.x.end());
    q.insert(q.end(), row.q.begin(), row.q.end());
    targets.push_back(row.target);
    total += row.row.loss(), bound += row.loss_bound();
    counted += terms.probabilities ? 1 : static_cast<long double>(row.weight[static_cast<std::size_t>(row.target)]);
    problems.push_back(std::move(row));
  }
  const std::int64_t matrix[] = {rows, n}, each[] = {rows};
  const std::span<const std::int64_t> full(matrix), none = full.first(0);
  std::vector<T> loss(1), dx(x.size());
  CrossEntropyOptions o = problems[0].options(reduction);
  o.dx = View(dx.data(), dtype_of<T>(), full);
  const View of = terms.probabilities ? View(q.data(), dtype_of<T>(), full) : View(targets.data(), DType::int64, each);
  softfold::cross_entropy(View(x.data(), dtype_of<S>(), full), of, View(loss.data(), dtype_of<T>(), none), o);

  constexpr long double u = Contract<S>::u;
  const long double by = reduction == Reduction::mean ? counted : 1, tree = 11;  // levels over the rows
  RowCheck<T> judge(std::string(terms.name) + (reduction == Reduction::sum ? ", sum" : ", mean"));
  judge(worst.loss, "loss", 0, loss[0], total / by, (bound + (2 * tree + 1) * 0x1p-53L * total) / by + u * total / by);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    const Wide slopes = problems[r].row.slopes();
    for (std::size_t k = 0; k < slopes.size(); ++k) {
      const std::size_t i = r * slopes.size() + k;
      const long double factor = 0.75L / by, mean = sizeof(S) == 8 ? tree + 1 : 0;
      judge(worst.dx, "gradient", i, dx[i], factor * slopes[k], problems[r].dx_bound(k, slopes[k], factor, mean),
            problems[r].counts(k));
    }
  }
}

TYPED_TEST(LossOracle, SumsAndMeansWithinTheStatedBounds) {
  WorstLoss worst;
  for (const Terms& terms : kTerms)
    for (const Reduction reduction : {Reduction::sum, Reduction::mean})
      check_reduction<TypeParam>(worst, terms, reduction);
  print_worst<TypeParam>("sums and means", worst.loss);
  print_worst<TypeParam>("gradients of sums and means", worst.dx);
}

}  // namespace
}  // namespace softfold_test::oracle
