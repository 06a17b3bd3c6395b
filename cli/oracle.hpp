// softmax in more precision than the library folds in, and the contract's bounds: what `verify` compares with.
#pragma once

#include "softfold/executor.hpp"
#include "softfold/options.hpp"

#include <cstdint>
#include <span>

namespace softfold::cli {

/// What a row's exact results follow from. Rows folded in float32 are computed in double, float64 ones in long double,
/// both with compensated sums.
struct Truth {
  enum class Kind { empty, regular, plus_infinity, not_a_number } kind = Kind::empty;  ///< the last one wins
  double extreme = 0;       ///< the element with the largest scale * x
  long double sum = 0;      ///< of exp(scale * (x - extreme))
  std::int64_t length = 0;  ///< elements in the row
};

/// The precision of the fold and of the result, and how elements enter it.
struct Precision {
  bool is_double;  ///< folded in float64
  DType output;
  double scale;
  Empty empty;

  long double unit() const { return is_double ? 0x1p-53L : 0x1p-24L; }
};

/// The truth of consecutive elements, and of two parts of one row together.
Truth truth_of(std::span<const double> x, const Precision& precision);
Truth join(const Truth& a, const Truth& b, const Precision& precision);

/// The result that came nearest to its bound, or passed it.
struct Worst {
  double ratio = 0;             ///< error / bound
  double error = 0, bound = 0;  ///< there, in units of the fold's u (relative for softmax, absolute otherwise)
  double largest_error = 0;     ///< anywhere
  double largest_ulp = 0;       ///< anywhere, in the output's last places; 0 where it is as wide as the fold
  std::int64_t index = -1;      ///< where the worst ratio is

  void take(const Worst& other);
};

/// Compares y (softmax's or log_softmax's results for the elements x of a row, from `first` on) with the truth.
Worst compare(Op op, const Truth& truth, std::span<const double> x, std::span<const double> y, std::int64_t first,
              const Precision& precision);
/// Compares a logsumexp.
Worst compare_lse(const Truth& truth, double lse, const Precision& precision);
/// Compares the sum of a whole row of probabilities with 1.
Worst compare_sum(const Truth& truth, long double sum, const Precision& precision);

}  // namespace softfold::cli
