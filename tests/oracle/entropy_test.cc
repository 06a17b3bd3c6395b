// The entropy and its gradient against MPFR and long double, within the bounds that docs/accuracy.md states.
#include "oracle/suite.hpp"
#include "support/sum_of.hpp"

#include "softfold/softfold.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace softfold_test::oracle {
namespace {

namespace fold = softfold::fold;
using softfold::DType;
using softfold::View;

struct WorstEntropy {
  Worst entropy, dx;
};

/// H = -sum p lp of a regular row, and how far the computed one may be from it: the roundings, and what softmax leaves
/// as 0.
template <class T>
struct ExactEntropy {
  static constexpr long double u = RowBounds<T>::u;
  const Exact& exact;
  RowBounds<T> bounds{exact};
  long double value = sum([&](std::size_t i) { return exact.probability[i] * log_of(i); });
  long double squares = sum([&](std::size_t i) { return exact.probability[i] * log_of(i) * log_of(i); });
  long double flushed = sum([&](std::size_t i) { return bounds.may_flush(i) ? exact.probability[i] * log_of(i) : 0; });
  long double levels = std::ceil(std::log2(static_cast<long double>(exact.probability.size())));
  /// float64 beyond the fast range: d may be as small as 2^-257, or large.
  long double beyond = sizeof(T) == 8 && std::abs(exact.top) > 0x1p51L ? 216 * (3 + 3 * levels) : 0;
  long double bound = (11 + 4.2L * levels + (14 + 3 * levels) * value + squares + beyond) * u + flushed;

  /// p (lp + H), the slope but for its sign.
  long double slope(std::size_t i) const {
    return std::isinf(exact.distance[i]) ? 0 : exact.probability[i] * (exact.log_probability[i] + value);
  }
  long double slope_bound(std::size_t i) const {
    if (std::isinf(exact.distance[i])) return 0;
    if (bounds.may_flush(i)) return std::abs(slope(i));
    return exact.probability[i] * (bounds.log_softmax(i) + bound) + std::abs(slope(i)) * (bounds.softmax(i) + 4 * u);
  }

 private:
  long double log_of(std::size_t i) const { return std::abs(exact.log_probability[i]); }
  template <class Leaf>
  long double sum(const Leaf& leaf) const {
    return sum_of(exact.probability.size(), [&](std::size_t i) { return exact.probability[i] > 0 ? leaf(i) : 0; });
  }
};

template <class S>
void check_entropy(WorstEntropy& worst, const std::vector<S>& x, double scale, const std::string& at) {
  const Exact row = exact_row(x, scale);
  if (row.row != Exact::Row::regular) return;
  const ExactEntropy<fold::FoldType<S>> exact{row};
  const std::int64_t matrix[] = {1, std::ssize(x)}, one[] = {1};
  std::vector<S> h(1), dx(x.size());
  const double dentropy = 1.75;
  softfold::EntropyOptions o;
  o.rows.scale = scale;
  o.dx = View(dx.data(), dtype_of<S>(), matrix);
  o.dentropy = View(&dentropy, DType::float64, one);
  softfold::entropy(View(x.data(), dtype_of<S>(), matrix), View(h.data(), dtype_of<S>(), one), o);

  RowCheck<S> judge(at);
  constexpr long double lost = RowCheck<S>::lost;
  judge(worst.entropy, "entropy", 0, h[0], exact.value, exact.bound + lost * static_cast<long double>(x.size()));
  const long double factor = -static_cast<long double>(scale) * static_cast<long double>(dentropy);
  for (std::size_t i = 0; i < dx.size(); ++i)
    judge(worst.dx, "gradient", i, dx[i], factor * exact.slope(i),
          std::abs(factor) * (exact.slope_bound(i) + 2 * lost) + 2 * lost, !exact.bounds.may_flush(i));
}

template <class S>
class EntropyOracle : public testing::Test {};
TYPED_TEST_SUITE(EntropyOracle, Storages);

TYPED_TEST(EntropyOracle, EveryKindOfRowWithinTheStatedBounds) {
  using S = TypeParam;
  WorstEntropy worst;
  for_rows<S>(all_kinds(), {1, 2, 33, 1023, 1024, 1025, 2049, 50257}, {1., -0.3, 3.7},
              [&](Kind kind, std::int64_t n, double scale, const std::string& at) {
                check_entropy(worst, make_row<S>(kind, n), scale, at);
              });
  print_worst<S>("entropy", worst.entropy);
  print_worst<S>("gradient of the entropy", worst.dx);
}

}  // namespace
}  // namespace softfold_test::oracle
