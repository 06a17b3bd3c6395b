// The accuracy contract (DESIGN 3.4), as checks: every error against its bound, and the largest of each kept.
#pragma once

#include "oracle/oracle.hpp"
#include "support/rows.hpp"

#include "softfold/fold/float16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace softfold_test::oracle {

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
  static constexpr long double u = sizeof(T) == 8 ? 0x1p-53L : 0x1p-24L;
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
    const auto n = static_cast<long double>(r.softmax.size());
    const long double ln_n = std::log(n);
    check_softmax(r, exact, ln_n, at);
    check_log_softmax(r, exact, ln_n, at);
    const long double largest = Storage<S>::largest;
    const long double lse = exact.lse;
    const long double bound = u * std::abs(lse) + (8 + 3 * ln_n) * u + half_ulp(lse);
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
  static constexpr long double kSmallest = static_cast<long double>(softfold::fold::Real<T>::kSmallest);

  /// float64 beyond |t| = 2^60: a state holds the row's maximum to 53 bits, and so does every difference from it.
  static long double beyond(long double top) { return std::abs(top) > 0x1p60L ? 3 * std::abs(top) * u : 0; }

  void check_softmax(const Results& r, const Exact& exact, long double ln_n, const std::string& at) {
    long double sum = 0;
    int reported = 0;
    for (std::size_t i = 0; i < r.softmax.size(); ++i) {
      const long double y = r.softmax[i], p = exact.probability[i];
      sum += y;
      const long double relative =
          std::isinf(exact.distance[i]) ? 0 : (8 + wider + exact.distance[i] + 2.5L * ln_n) * u;
      const long double bound = relative * p + half_ulp(p);
      const bool flushed = y == 0 && p < kSmallest * (1 + relative);
      if (!flushed) measured.softmax.take(p > 0 ? std::abs(y - p) / p : y, p > 0 ? bound / p : u, u, at);
      const bool good = flushed || (std::abs(y - p) <= bound && y >= (half ? 0 : kSmallest));
      if (good || ++reported > 3) continue;
      ADD_FAILURE() << at << "[" << i << "]: softmax " << r.softmax[i] << ", exactly " << static_cast<double>(p)
                    << ", error " << static_cast<double>(std::abs(y - p) / p / u) << " u, allowed "
                    << static_cast<double>(bound / p / u) << " u";
    }
    EXPECT_LE(reported, 3) << at << ": " << reported << " elements";
    const auto n = static_cast<long double>(r.softmax.size());
    long double bound = (3 + 1.5L * ln_n) * u;
    if (half) bound += Storage<S>::mantissa_bits == 7 ? 0x1p-8L : 0x1p-11L + n * 0x1p-25L;
    EXPECT_LE(std::abs(sum - 1), bound) << at;
    measured.sum.take(std::abs(sum - 1), bound, u, at);
  }

  void check_log_softmax(const Results& r, const Exact& exact, long double ln_n, const std::string& at) {
    int reported = 0;
    for (std::size_t i = 0; i < r.log_softmax.size(); ++i) {
      const long double y = r.log_softmax[i];
      long double lp = exact.log_probability[i];
      if (std::isinf(lp)) {
        if (!(y == lp) && ++reported <= 3) ADD_FAILURE() << at << "[" << i << "]: log_softmax of -inf is " << y;
        continue;
      }
      const long double bound =
          (3 * std::abs(lp) + 8 + wider + 2 * exact.distance[i] + 5 * ln_n) * u + beyond(exact.top) + half_ulp(lp);
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

}  // namespace softfold_test::oracle
