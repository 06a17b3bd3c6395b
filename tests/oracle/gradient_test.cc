// The gradients against long double, each with the bound that docs/accuracy.md states for it; and the definition of
// the gradients themselves against finite differences.
#include "oracle/suite.hpp"
#include "support/sum_of.hpp"
#include "support/tensor.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace softfold_test::oracle {
namespace {

using Wide = std::vector<long double>;

template <class S>
Wide widened(const std::vector<S>& a) {
  Wide wide;
  for (const S v : a) wide.push_back(static_cast<long double>(fold::widen(v)));
  return wide;
}

/// One row through one of the three backward passes, and the bounds of its results.
template <class S>
class GradientRow {
 public:
  using T = fold::FoldType<S>;
  static constexpr long double u = Contract<S>::u, lost = RowCheck<S>::lost;

  GradientRow(std::vector<S> x, double scale, std::string at)
      : x_(std::move(x)), y_(x_.size()), dy_(x_.size()), dx_(x_.size()), at_(std::move(at)), shape_{std::ssize(x_)} {
    options_.scale = scale;
    scale_ = static_cast<long double>(scale);
    Random random(static_cast<std::uint64_t>(x_.size()));
    for (S& v : dy_) v = fold::narrow<S>(random.uniform(-2., 2.));
  }

  void softmax(Worst& worst) {
    softfold::softmax(view(x_), view(y_), options_);
    softfold::softmax_backward(view(y_), view(dy_), view(dx_), options_);
    const Wide y = widened(y_), dy = widened(dy_);
    const long double s = sum_of(y.size(), [&](std::size_t i) { return y[i] * dy[i]; });
    const long double size = sum_of(y.size(), [&](std::size_t i) { return std::abs(y[i] * dy[i]); });
    compare(worst, "gradient of softmax", [&](std::size_t i) {
      const long double underflow = lost * (1 + std::abs(scale_) * (1 + y[i] * static_cast<long double>(y.size())));
      return Expected{scale_ * y[i] * (dy[i] - s),
                      std::abs(scale_) * y[i] * ((1 + levels()) * size + 4 * std::abs(dy[i] - s)) * u + underflow};
    });
  }

  void log_softmax(Worst& worst) {
    softfold::log_softmax(view(x_), view(y_), options_);
    softfold::log_softmax_backward(view(y_), view(dy_), view(dx_), options_);
    const Wide y = widened(y_), dy = widened(dy_);
    const long double s = sum_of(y.size(), [&](std::size_t i) { return dy[i]; });
    const long double size = sum_of(y.size(), [&](std::size_t i) { return std::abs(dy[i]); });
    constexpr long double flushed = sizeof(T) == 8 ? 0x1p-1021L : 0x1p-125L;  // a p below it is 0
    compare(worst, "gradient of log_softmax", [&](std::size_t i) {
      const long double p = std::exp(y[i]), far = p > 0 ? std::abs(y[i]) : 0;
      const long double of_p = levels() * size + (3.8L + far) * std::abs(s);
      const long double underflow = lost + std::abs(scale_) * (lost + flushed * std::abs(s));
      return Expected{scale_ * (dy[i] - p * s),
                      std::abs(scale_) * (p * of_p + 3 * std::abs(dy[i] - p * s)) * u + underflow};
    });
  }

  void logsumexp(Worst& worst, const Exact& exact) {
    std::vector<double> states(4);
    const std::int64_t four[] = {4};
    const View stored(states.data(), DType::float64, four);
    softfold::state(view(x_), stored, options_);
    double dlse = 1.75;
    softfold::logsumexp_backward(view(x_), stored, View(&dlse, DType::float64, std::span<const std::int64_t>{}),
                                 view(dx_), options_);
    const long double factor = scale_ * static_cast<long double>(dlse);
    const RowBounds<T> bounds{exact};
    compare(worst, "gradient of logsumexp", [&](std::size_t i) {
      const long double p = exact.probability[i], relative = bounds.softmax(i) + 3 * u;
      const bool may_flush = bounds.may_flush(i);
      return Expected{factor * p, std::abs(factor) * (may_flush ? p : relative * p) + 2 * lost, may_flush};
    });
  }

 private:
  struct Expected {
    long double value, bound;
    bool may_flush = false;  ///< the bound is the value: says nothing
  };

  View view(std::vector<S>& a) { return View(a.data(), dtype_of<S>(), shape_); }
  long double levels() const { return std::ceil(std::log2(static_cast<long double>(x_.size()))); }

  template <class Expect>
  void compare(Worst& worst, const char* what, const Expect& expect) {
    RowCheck<S> check(at_);
    for (std::size_t i = 0; i < dx_.size(); ++i) {
      const Expected e = expect(i);
      check(worst, what, i, dx_[i], e.value, e.bound, !e.may_flush);
    }
  }

  std::vector<S> x_, y_, dy_, dx_;
  std::string at_;
  std::vector<std::int64_t> shape_;
  softfold::RowOptions options_;
  long double scale_;
};

template <class S>
class GradientOracle : public testing::Test {};
TYPED_TEST_SUITE(GradientOracle, Storages);

TYPED_TEST(GradientOracle, EveryKindOfRowWithinTheStatedBounds) {
  using S = TypeParam;
  Worst softmax, log_softmax, logsumexp;
  for_rows<S>(all_kinds(), {1, 2, 33, 1025, 5000}, {1., -0.3, 3.7},
              [&](Kind kind, std::int64_t n, double scale, const std::string& at) {
                const auto x = make_row<S>(kind, n);
                const Exact exact = exact_row(x, scale);
                if (exact.row != Exact::Row::regular) return;
                GradientRow<S> row(x, scale, at);
                row.softmax(softmax);
                row.log_softmax(log_softmax);
                row.logsumexp(logsumexp, exact);
              });
  print_worst<S>("gradient of softmax", softmax);
  print_worst<S>("gradient of log_softmax", log_softmax);
  print_worst<S>("gradient of logsumexp", logsumexp);
}

/// f(x) by its definition, in long double.
Wide forward(softfold::Op op, const Wide& x, long double scale) {
  long double total = 0;
  for (const long double v : x) total += std::exp(scale * v);
  Wide y;
  for (const long double v : x)
    y.push_back(op == softfold::Op::softmax ? std::exp(scale * v) / total : scale * v - std::log(total));
  if (op == softfold::Op::logsumexp) return {std::log(total)};
  return y;
}

// d/dx_i of sum dy f(x), by central differences: their error is of the order of the step's square.
TEST(Gradients, AreThoseOfFiniteDifferences) {
  constexpr std::size_t n = 24;
  constexpr long double step = 0x1p-14L;
  constexpr double scale = 0.6;
  std::vector<std::int64_t> shape{n}, four{4}, none;
  Random random(3);
  std::vector<double> x(n), dy(n), y(n), dx(n), states(4);
  for (double& v : x) v = random.uniform(-3., 3.);
  for (double& v : dy) v = random.uniform(-1., 1.);
  const auto view = [&](std::vector<double>& a) { return View(a.data(), DType::float64, shape); };
  const View stored(states.data(), DType::float64, four);
  softfold::RowOptions options;
  options.scale = scale;
  const auto check = [&](softfold::Op op) {
    for (std::size_t i = 0; i < n; ++i) {
      Wide up(x.begin(), x.end()), down = up;
      up[i] += step, down[i] -= step;
      const Wide a = forward(op, up, scale), b = forward(op, down, scale);
      long double difference = 0;
      for (std::size_t j = 0; j < a.size(); ++j) difference += static_cast<long double>(dy[j]) * (a[j] - b[j]);
      EXPECT_NEAR(dx[i], static_cast<double>(difference / (2 * step)), 1e-8) << name_of(op) << " " << i;
    }
  };
  softfold::softmax(view(x), view(y), options);
  softfold::softmax_backward(view(y), view(dy), view(dx), options);
  check(softfold::Op::softmax);
  softfold::log_softmax(view(x), view(y), options);
  softfold::log_softmax_backward(view(y), view(dy), view(dx), options);
  check(softfold::Op::log_softmax);
  softfold::state(view(x), stored, options);
  softfold::logsumexp_backward(view(x), stored, View(dy.data(), DType::float64, none), view(dx), options);
  check(softfold::Op::logsumexp);
}

}  // namespace
}  // namespace softfold_test::oracle
