// The accuracy contract (DESIGN 3.4), as checks: every error against its bound, and the largest of each kept.
#pragma once

#include "oracle/oracle.hpp"
#include "support/rows.hpp"

#include "softfold/fold/float16.hpp"
#include "softfold/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace softfold_test::oracle {

template <class S>
constexpr softfold::DType dtype_of() {
  using softfold::DType;
  if constexpr (std::is_same_v<S, double>) return DType::float64;
  if constexpr (std::is_same_v<S, softfold::fold::Float16>) return DType::float16;
  if constexpr (std::is_same_v<S, softfold::fold::BFloat16>) return DType::bfloat16;
  return DType::float32;
}

/// The largest error of one result, in u = 2^-24 (float64: 2^-53), and how much of its bound it used.
struct Worst {
  double in_u = 0, of_bound = 0;
  std::string where = "-";
  void take(long double error, long double bound, long double u, const std::string& at) {
    in_u = std::max(in_u, static_cast<double>(error / u));
    const auto part = static_cast<double>(error / bound);
    if (!(part > of_bound)) return;
    of_bound = part;
    where = at;
  }
};

struct Measured {
  Worst softmax, sum, log_softmax, logsumexp;
  void print(const char* dtype) const {
    // An absolute bound grows with |lp| and |lse|: in u only the relative errors say something.
    const auto line = [dtype](const char* what, const Worst& w, bool relative) {
      std::printf("  %-9s %-12s at most %5.1f%% of its bound (%s)", dtype, what, 100 * w.of_bound, w.where.c_str());
      if (relative) std::printf(", at most %.2f u", w.in_u);
      std::printf("\n");
    };
    line("softmax", softmax, true);
    line("sum p - 1", sum, true);
    line("log_softmax", log_softmax, false);
    line("logsumexp", logsumexp, false);
  }
};

/// The bounds of docs/accuracy.md for the probabilities, their logarithms and the lse of a regular row that is folded
/// in T: what the bounds of all that is made of these follow from.
template <class T>
struct RowBounds {
  static constexpr long double u = sizeof(T) == 8 ? 0x1p-53L : 0x1p-24L;
  static constexpr long double kSmallest = static_cast<long double>(softfold::fold::Real<T>::kSmallest);

  const Exact& exact;
  long double wider = 0;  ///< u by which the bounds of what depends on differences of scores are wider
  long double ln_n = std::log(static_cast<long double>(exact.probability.size()));

  /// Relative.
  long double softmax(std::size_t i) const {
    return std::isinf(exact.distance[i]) ? 0 : (8 + wider + exact.distance[i] + 2.5L * ln_n) * u;
  }
  bool may_flush(std::size_t i) const { return exact.probability[i] < kSmallest * (1 + softmax(i)); }
  /// Of a finite one.
  long double log_softmax(std::size_t i) const {
    const long double of_lp = 3 * std::abs(exact.log_probability[i]);
    return (of_lp + 8 + wider + 2 * exact.distance[i] + 5 * ln_n) * u + beyond();
  }
  long double logsumexp() const { return u * std::abs(exact.lse) + (8 + 3 * ln_n) * u; }

 private:
  /// float64 beyond |t| = 2^60: a state holds the row's maximum to 53 bits, and so does every difference from it.
  long double beyond() const { return std::abs(exact.top) > 0x1p60L ? 3 * std::abs(exact.top) * u : 0; }
};

/// One row's results as they were stored, widened.
struct Results {
  std::vector<double> softmax, log_softmax;
  double logsumexp = 0;
};

/// Checks results stored as S, folded in fold::FoldType<S>, against the exact ones.
template <class S>
class Contract {
 public:
  using T = softfold::fold::FoldType<S>;
  static constexpr long double u = RowBounds<T>::u;
  static constexpr bool half = sizeof(S) == 2;

  /// Half a unit in the last place of S at `a`, for the 16-bit types; their state is float32.
  static long double half_ulp(long double a) {
    if (!half) return 0;
    int e = 0;
    std::frexp(a, &e);
    const long double smallest = Storage<S>::smallest / 2;
    return std::max(smallest, std::ldexp(1.L, e - 2 - Storage<S>::mantissa_bits));
  }

  void check(const Results& r, const Exact& exact, const std::string& at) {
    if (exact.row != Exact::Row::regular) return check_special(r, exact, at);
    const RowBounds<T> bounds{exact, wider};
    check_softmax(r, bounds, at);
    check_log_softmax(r, bounds, at);
    const long double largest = Storage<S>::largest;
    const long double lse = exact.lse;
    const long double bound = bounds.logsumexp() + half_ulp(lse);
    if (std::abs(lse) + bound >= largest && std::abs(r.logsumexp) >= static_cast<double>(largest)) {
      EXPECT_EQ(r.logsumexp > 0, lse > 0) << at;  // beyond the range of S: its end, or infinity
      return;
    }
    const long double error = std::abs(static_cast<long double>(r.logsumexp) - lse);
    EXPECT_LE(error, bound) << at << ": lse " << r.logsumexp << ", exactly " << static_cast<double>(lse);
    measured.logsumexp.take(error, bound, u, at);
  }

  Measured measured;
  long double wider = 0;  ///< u by which the bounds of what depends on differences of scores are wider

 private:
  static constexpr long double kSmallest = RowBounds<T>::kSmallest;

  void check_softmax(const Results& r, const RowBounds<T>& bounds, const std::string& at) {
    const Exact& exact = bounds.exact;
    long double sum = 0;
    int reported = 0;
    for (std::size_t i = 0; i < r.softmax.size(); ++i) {
      const long double y = r.softmax[i], p = exact.probability[i];
      sum += y;
      const long double bound = bounds.softmax(i) * p + half_ulp(p);
      const bool flushed = y == 0 && bounds.may_flush(i);
      if (!flushed) measured.softmax.take(p > 0 ? std::abs(y - p) / p : y, p > 0 ? bound / p : u, u, at);
      const bool good = flushed || (std::abs(y - p) <= bound && y >= (half ? 0 : kSmallest));
      if (good || ++reported > 3) continue;
      ADD_FAILURE() << at << "[" << i << "]: softmax " << r.softmax[i] << ", exactly " << static_cast<double>(p)
                    << ", error " << static_cast<double>(std::abs(y - p) / p / u) << " u, allowed "
                    << static_cast<double>(bound / p / u) << " u";
    }
    EXPECT_LE(reported, 3) << at << ": " << reported << " elements";
    const auto n = static_cast<long double>(r.softmax.size());
    long double bound = (3 + 1.5L * bounds.ln_n) * u;
    if (half) bound += Storage<S>::mantissa_bits == 7 ? 0x1p-8L : 0x1p-11L + n * 0x1p-25L;
    EXPECT_LE(std::abs(sum - 1), bound) << at;
    measured.sum.take(std::abs(sum - 1), bound, u, at);
  }

  void check_log_softmax(const Results& r, const RowBounds<T>& bounds, const std::string& at) {
    const Exact& exact = bounds.exact;
    int reported = 0;
    for (std::size_t i = 0; i < r.log_softmax.size(); ++i) {
      const long double y = r.log_softmax[i];
      long double lp = exact.log_probability[i];
      if (std::isinf(lp)) {
        if (!(y == lp) && ++reported <= 3) ADD_FAILURE() << at << "[" << i << "]: log_softmax of -inf is " << y;
        continue;
      }
      const long double bound = bounds.log_softmax(i) + half_ulp(lp);
      if (std::isinf(y) && std::abs(lp) + bound >= Storage<S>::largest) continue;  // below the lowest number
      measured.log_softmax.take(std::abs(y - lp), bound, u, at);
      if ((std::abs(y - lp) <= bound && y <= 0) || ++reported > 3) continue;
      ADD_FAILURE() << at << "[" << i << "]: log_softmax " << r.log_softmax[i] << ", exactly "
                    << static_cast<double>(lp) << ", error " << static_cast<double>(std::abs(y - lp) / u)
                    << " u, allowed " << static_cast<double>(bound / u) << " u";
    }
    EXPECT_LE(reported, 3) << at << ": " << reported << " elements";
  }

  void check_special(const Results& r, const Exact& exact, const std::string& at) {
    const bool empty = exact.row == Exact::Row::empty;
    for (const double y : r.softmax) EXPECT_TRUE(empty ? y == 0 && !std::signbit(y) : std::isnan(y)) << at;
    for (const double y : r.log_softmax) EXPECT_TRUE(empty ? y == -INFINITY : std::isnan(y)) << at;
    if (std::isnan(exact.lse)) {
      EXPECT_TRUE(std::isnan(r.logsumexp)) << at;
    } else {
      EXPECT_EQ(r.logsumexp, static_cast<double>(exact.lse)) << at;
    }
  }
};

/// The results of one row, stored as S, each against its exact value and its bound before it was stored.
template <class S>
class RowCheck {
 public:
  using C = Contract<S>;
  /// Half of the smallest number of the fold: what a product below the normal numbers may lose.
  static constexpr long double lost = sizeof(S) == 8 ? 0x1p-1075L : 0x1p-150L;

  explicit RowCheck(std::string at) : at_(std::move(at)) {}
  ~RowCheck() { EXPECT_LE(reported_, 3) << at_ << ": " << reported_ << " elements"; }
  RowCheck(const RowCheck&) = delete;
  RowCheck& operator=(const RowCheck&) = delete;

  /// `counts`: false where the bound is the value itself, which says nothing.
  void operator()(Worst& worst, const char* what, std::size_t i, S got, long double value, long double bound,
                  bool counts = true) {
    const auto y = static_cast<long double>(softfold::fold::widen(got));
    if (std::isinf(y) && (y > 0) == (value > 0) && std::abs(value) + bound >= Storage<S>::largest) return;
    bound += C::half_ulp(std::abs(value) + bound);
    const long double error = std::abs(y - value);
    if (counts) worst.take(error, bound, C::u, at_);
    if (error <= bound || ++reported_ > 3) return;
    ADD_FAILURE() << at_ << "[" << i << "]: " << what << " " << static_cast<double>(y) << ", exactly "
                  << static_cast<double>(value) << ", error " << static_cast<double>(error / bound) << " of its bound";
  }

 private:
  std::string at_;
  int reported_ = 0;
};

}  // namespace softfold_test::oracle
