// The divergence of two rows and its gradients against MPFR, close rows and far ones of every kind, within the bounds
// that docs/accuracy.md states. (Nothing less resolves them: float64 rows that differ by 2^-40 have a divergence of
// 2^-80, of which long double logarithms leave no digit.)
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

struct WorstDivergence {
  Worst divergence, dp, dq;
};

/// The exact results of two regular rows and how far the computed ones may be from them. The gradients are in scale
/// times the logits.
template <class T>
class DivergenceBounds {
 public:
  static constexpr long double u = RowBounds<T>::u;

  DivergenceBounds(const Exact& a, const Exact& b, const ExactDivergence& exact, long double largest_score)
      : a_(a), b_(b), exact_(exact), of_a_{a}, of_b_{b}, apart_(!is_fast(a) || !is_fast(b)) {
    long double far = 0;
    for (std::size_t i = 0; i < size(); ++i)
      for (const Exact* row : {&a, &b})
        if (std::isfinite(row->distance[i])) far = std::max(far, row->distance[i]);
    const long double least = -std::log(RowBounds<T>::kSmallest), second = (8 + 3 * of_a_.ln_n) * u;
    t_ = (8 + std::min(far, least) + 2.5L * of_a_.ln_n) * u;
    for (std::size_t chunks = (size() + 1023) / 1024; chunks > 1; chunks = (chunks + 1) / 2) ++levels_;
    common_ = (1 + levels_) * (1 + levels_) * (second * second + 44 * largest_score * u * u);
    flushed_ = sum_of(size(), [&](std::size_t i) { return flushed(i); });
    if (apart_) of_ratios_ = sum_of(size(), [&](std::size_t i) { return a.probability[i] * ratio_bound(i); });
  }

  long double divergence() const {
    return (8 + 20 * levels_) * t_ * exact_.divergence + common_ + flushed_ + 2 * (1 + levels_) * of_ratios_;
  }
  long double slope_of_p(std::size_t i) const {
    return a_.probability[i] > 0 ? a_.probability[i] * (exact_.log_ratio[i] - exact_.divergence) : 0;
  }
  long double slope_of_p_bound(std::size_t i) const {
    if (of_a_.may_flush(i)) return std::abs(slope_of_p(i));
    return a_.probability[i] * of_ratio(i);
  }
  long double slope_of_q_bound(std::size_t i) const {
    const long double p = a_.probability[i], q = b_.probability[i];
    long double lost = of_b_.may_flush(i) ? q : 0;
    if (of_a_.may_flush(i)) lost += p + std::abs(exact_.difference[i]);
    // The computed r decides which of two forms gives q - p.
    const long double r = std::abs(exact_.log_ratio[i]), close = of_ratio(i) + 8 * t_ * exact_.divergence + common_ +
                                                                 flushed_ + 2 * (1 + levels_) * of_ratios_;
    const long double error = r > 1 + close ? 2 * t_ : r < 1 - close ? close : std::max(2 * t_, close);
    return (p + q) * error + lost;
  }
  /// Whether the bounds of element i say something.
  bool counts(std::size_t i) const { return !of_a_.may_flush(i) && !of_b_.may_flush(i); }

 private:
  std::size_t size() const { return a_.probability.size(); }
  /// Whether ln p - ln q comes from the difference of the logits.
  static bool is_fast(const Exact& row) { return std::abs(row.top) < (sizeof(T) == 8 ? 0x1p51L : 0x1p22L) / 1.4427L; }

  /// Of r less the divergence: |r| <= 1 and the mean of r.
  long double of_ratio(std::size_t i) const {
    const long double r = std::isfinite(exact_.log_ratio[i]) ? std::abs(exact_.log_ratio[i]) : 0;
    const long double of_mean = 3 * (1 + levels_) * exact_.size + 20 * levels_ * exact_.divergence;
    return t_ * (2 * r + of_mean) + common_ + flushed_ + ratio_bound(i) + 2 * (1 + levels_) * of_ratios_;
  }
  /// Of an r that is a difference of logarithms.
  long double ratio_bound(std::size_t i) const {
    if (!apart_ || !std::isfinite(a_.distance[i]) || !std::isfinite(b_.distance[i])) return 0;
    return of_a_.log_softmax(i) + of_b_.log_softmax(i);
  }
  /// What is missing of the sums because softmax leaves it as 0.
  long double flushed(std::size_t i) const {
    const long double p = a_.probability[i], r = p > 0 ? std::abs(exact_.log_ratio[i]) : 0;
    return (of_a_.may_flush(i) && p > 0 ? p * (r + 1) : 0) + (of_b_.may_flush(i) ? b_.probability[i] : 0);
  }

  const Exact &a_, &b_;
  const ExactDivergence& exact_;
  RowBounds<T> of_a_, of_b_;
  bool apart_;
  int levels_ = 0;  ///< of the tree, above the chunks
  long double t_ = 0, common_ = 0, flushed_ = 0, of_ratios_ = 0;
};

template <class S>
struct Divergence {
  std::vector<S> value, dp, dq;
};
constexpr double kIncoming = 1.75;

template <class S>
Divergence<S> divergence_of(const std::vector<S>& a, const std::vector<S>& b, double scale) {
  const std::int64_t matrix[] = {1, std::ssize(a)}, one[] = {1};
  const auto row = [&](const std::vector<S>& x) { return View(x.data(), dtype_of<S>(), matrix); };
  Divergence<S> got{std::vector<S>(1), std::vector<S>(a.size()), std::vector<S>(a.size())};
  softfold::KlDivergenceOptions o;
  o.rows.scale = scale;
  o.dp = View(got.dp.data(), dtype_of<S>(), matrix), o.dq = View(got.dq.data(), dtype_of<S>(), matrix);
  o.dkl = View(&kIncoming, DType::float64, one);
  softfold::kl_divergence(row(a), row(b), View(got.value.data(), dtype_of<S>(), one), o);
  return got;
}

/// Whether a logarithm leaves the range of T, where a ratio is infinite.
template <class T>
bool leaves_range(const Exact& row) {
  for (const long double lp : row.log_probability)
    if (std::isfinite(lp) && std::abs(lp) >= std::numeric_limits<T>::max() / 4) return true;
  return false;
}

template <class S>
void check_divergence(WorstDivergence& worst, const std::vector<S>& a, const std::vector<S>& b, double scale,
                      const std::string& at) {
  using T = fold::FoldType<S>;
  const std::vector<double> x = in_double(a), y = in_double(b);
  const Exact p = exact_row(a, scale), q = exact_row(b, scale);
  if (p.row != Exact::Row::regular || q.row != Exact::Row::regular) return;
  if (leaves_range<T>(p) || leaves_range<T>(q)) return;
  const ExactDivergence exact = divergence_in_mpfr(x, y, scale);
  const Divergence<S> got = divergence_of(a, b, scale);
  if (std::isinf(exact.divergence)) {
    EXPECT_EQ(fold::widen(got.value[0]), INFINITY) << at;
    for (const S v : got.dp) EXPECT_TRUE(std::isnan(fold::widen(v))) << at;
    return;
  }
  long double largest = 0;
  for (const auto* row : {&x, &y})
    for (const double v : *row)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(static_cast<long double>(scale) * v));
  const DivergenceBounds<T> bounds(p, q, exact, largest);
  RowCheck<S> judge(at);
  constexpr long double lost = RowCheck<S>::lost;
  const long double factor = static_cast<long double>(scale) * static_cast<long double>(kIncoming),
                    below = 4 * lost * (1 + std::abs(factor));
  judge(worst.divergence, "divergence", 0, got.value[0], exact.divergence,
        bounds.divergence() + 4 * lost * static_cast<long double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    judge(worst.dp, "gradient of p", i, got.dp[i], factor * bounds.slope_of_p(i),
          std::abs(factor) * bounds.slope_of_p_bound(i) + below, bounds.counts(i));
    judge(worst.dq, "gradient of q", i, got.dq[i], factor * exact.difference[i],
          std::abs(factor) * bounds.slope_of_q_bound(i) + below, bounds.counts(i));
  }
}

/// The row with every element moved by up to `by`.
template <class S>
std::vector<S> moved(std::vector<S> x, double by) {
  Random random(x.size() + 5);
  for (S& v : x) v = fold::narrow<S>(static_cast<double>(fold::widen(v)) + by * random.uniform(-1., 1.));
  return x;
}

template <class S>
class DivergenceOracle : public testing::Test {};
TYPED_TEST_SUITE(DivergenceOracle, Storages);

TYPED_TEST(DivergenceOracle, EveryKindOfRowWithinTheStatedBounds) {
  using S = TypeParam;
  WorstDivergence worst;
  const auto check = [&](Kind kind, std::int64_t n, double scale, const std::string& at) {
    const auto a = make_row<S>(kind, n);
    check_divergence(worst, a, moved(a, sizeof(S) == 8 ? 1e-9 : 1e-4), scale, at + ", close");
    check_divergence(worst, a, moved(a, 2.), scale, at + ", moved");
    check_divergence(worst, a, make_row<S>(kind, n, 2), scale, at + ", another");
    check_divergence(worst, a, make_row<S>(Kind::gaussian, n, 3), scale, at + ", gaussian");
  };
  for_rows<S>(all_kinds(), {1, 2, 33, 1023, 1024, 1025, 2049}, {1.}, check);
  for_rows<S>(all_kinds(), {1, 2, 33, 1025}, {-0.3, 3.7}, check);  // MPFR takes its time
  for_rows<S>({Kind::gaussian, Kind::ascending, Kind::sawtooth, Kind::late_maximum}, {9001}, {1.}, check);
  print_worst<S>("divergence", worst.divergence);
  print_worst<S>("gradient of p", worst.dp);
  print_worst<S>("gradient of q", worst.dq);
}

}  // namespace
}  // namespace softfold_test::oracle
