// What the results should be, in far more precision than any of them has.
#pragma once

#include <span>
#include <vector>

namespace softfold_test::oracle {

/// One row, exactly (to 2^-60 or better). Natural units: t = scale * x, d = max t - t.
struct Exact {
  enum class Row { regular, empty, plus_infinity, not_a_number } row = Row::regular;
  std::vector<long double> distance;  ///< d_i; infinite for an element that counts for nothing
  std::vector<long double> probability;
  std::vector<long double> log_probability;
  long double lse = 0;
  long double top = 0;  ///< max t
};

/// The C library's long double functions and a compensated sum.
Exact in_long_double(std::span<const double> x, double scale);

/// MPFR with 240 bits. Slower by far.
Exact in_mpfr(std::span<const double> x, double scale);

/// The divergence of two regular rows, exactly (to 2^-60 or better of each number, however close the rows are).
struct ExactDivergence {
  std::vector<long double> log_ratio;   ///< r = ln p - ln q; infinite where one is 0, 0 where both are
  std::vector<long double> difference;  ///< q - p
  std::vector<long double> term;        ///< p r + q - p
  long double divergence = 0;
  long double size = 0;  ///< sum p |r|
};

/// MPFR with 240 bits.
ExactDivergence divergence_in_mpfr(std::span<const double> a, std::span<const double> b, double scale);

}  // namespace softfold_test::oracle
